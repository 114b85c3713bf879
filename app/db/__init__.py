"""Storage: conversations, messages and generations in one SQLite file."""
