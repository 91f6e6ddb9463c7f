"""The `ceb` command."""
