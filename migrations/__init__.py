"""Alembic migrations of the conversations' database, each with the reason for its tables."""
