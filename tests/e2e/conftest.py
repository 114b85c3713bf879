"""The session's shared server is a fixture of every end-to-end test."""

from __future__ import annotations

from tests.e2e.server import server

__all__ = ["server"]
