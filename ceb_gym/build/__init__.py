"""From short strings and objects to critics, labelers, policies, banks and engines."""
