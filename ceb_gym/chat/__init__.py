"""Chat with language models through any OpenAI-compatible endpoint."""
