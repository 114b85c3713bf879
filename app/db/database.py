"""The SQLite file: opened once per server, in WAL mode, with its migrations applied."""

from __future__ import annotations

import asyncio
from pathlib import Path

from advanced_alchemy.config import AsyncSessionConfig, EngineConfig, SQLAlchemyAsyncConfig
from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncSession

from app import paths
from app.db.lock import FileLock
from app.db.migrate import upgrade

_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    # In WAL mode this survives a crash of the program; only a power cut can cost the last transactions.
    "PRAGMA synchronous = NORMAL",
    "PRAGMA busy_timeout = 5000",
)


def url(path: Path, driver: str) -> URL:
    return URL.create(f"sqlite+{driver}", database=str(path))


class Database:
    """Sessions on one file. Each unit of work takes its own: `async with database.session() as session`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._config: SQLAlchemyAsyncConfig | None = None
        self._lock = FileLock(path.with_name(f"{path.name}.lock"))

    def claim(self) -> None:
        """Take the file for this server alone, and back up and upgrade an older one.

        Raises DatabaseInUse, DatabaseError, FolderUnusable.
        """
        paths.create(self.path.parent, private=True)
        self._lock.take()
        try:
            upgrade(self.path)
        except BaseException:
            self._lock.release()
            raise

    def try_out(self) -> None:
        """Claim the file and let it go: what is wrong shows before a server starts."""
        self.claim()
        self._lock.release()

    async def open(self) -> None:
        """Claim the file, then open it."""
        await asyncio.to_thread(self.claim)
        config = SQLAlchemyAsyncConfig(
            connection_string=url(self.path, "aiosqlite").render_as_string(hide_password=False),
            engine_config=EngineConfig(pool_size=4, max_overflow=4),
            session_config=AsyncSessionConfig(expire_on_commit=False),
        )

        @event.listens_for(config.get_engine().sync_engine, "connect")
        def prepare(connection: object, _: object) -> None:
            cursor = connection.cursor()  # type: ignore[attr-defined]
            for pragma in _PRAGMAS:
                cursor.execute(pragma)
            cursor.close()

        self._sessions = config.create_session_maker()
        self._config = config

    def session(self) -> AsyncSession:
        return self._sessions()

    async def close(self) -> None:
        if self._config is not None:
            await self._config.get_engine().dispose()
            self._config = None
        self._lock.release()
