"""The models' life beside the server's, and how the server stops."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from litestar import Litestar

from app.models.pool import ModelPool

SERVER_STOPPING = "server_stopping"
"""Litestar event: no more connections are taken. What would keep one open for ever ends now; answers get a moment more."""
ANSWERS_GRACE_S = 3.0
"""How long answers may go on while the server stops; then they end with an error."""


def models_lifespan(pool: ModelPool) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    """Loads the main model beside the running server and closes all of them at the end."""

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await pool.start()
        try:
            yield
        finally:
            await pool.close()

    return lifespan
