"""Brings a database file to the newest tables, after copying it aside."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event

import migrations
from app import paths
from engine.errors import PagewellError

KEPT_BACKUPS = 5


class DatabaseError(PagewellError):
    """The database file cannot be used: damaged, not writable, or written by a newer version."""


def alembic_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    return config


def upgrade(path: Path) -> Path | None:
    """Apply what is missing. Returns the backup copy, or None when the file was new or already up to date."""
    paths.create(path.parent, private=True)
    config = alembic_config()
    scripts = ScriptDirectory.from_config(config)
    head = scripts.get_current_head()
    engine = begin_for_real(create_engine(URL.create("sqlite", database=str(path))))
    try:
        with engine.connect() as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            known = {revision.revision for revision in scripts.walk_revisions()}
            if current == head:
                return None
            if current is not None and current not in known:
                raise DatabaseError(
                    f"{path} was written by a newer Pagewell (tables {current}, this one knows up to {head}).",
                    f"Update Pagewell, or put the newest {path.name}.*.backup of this version in its place.",
                )
            backup = _back_up(path, current) if current is not None else None
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
            return backup
    except sqlite3.DatabaseError as error:
        raise _unusable(path, error) from error
    except Exception as error:
        if isinstance(getattr(error, "orig", None), sqlite3.DatabaseError):
            raise _unusable(path, error.orig) from error  # type: ignore[attr-defined]
        raise
    finally:
        engine.dispose()


def begin_for_real(engine: Engine) -> Engine:
    """Python's sqlite3 begins no transaction before a change of tables. It is told to begin none at all, and SQLAlchemy does."""

    @event.listens_for(engine, "connect")
    def leave_alone(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _unusable(path: Path, error: BaseException) -> DatabaseError:
    return DatabaseError(
        f"The database {path} cannot be opened: {error}.",
        "Check that the folder is writable. If the file is damaged, move it away or put a *.backup file in its place.",
    )


def _back_up(path: Path, revision: str) -> Path:
    """A consistent copy, pages of the write-ahead log included; only the newest few are kept."""
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    backup = path.with_name(f"{path.name}.{revision}.{stamp}.backup")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)
    backups = sorted(path.parent.glob(f"{path.name}.*.backup"), key=lambda file: file.stat().st_mtime)
    for old in backups[:-KEPT_BACKUPS]:
        old.unlink()
    return backup
