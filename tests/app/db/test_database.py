"""The database file: tables match the models, old files are upgraded after a backup, chats of any length can go."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from sqlalchemy import URL, Engine, create_engine, func, select, text

from app.db.database import Database
from app.db.lock import DatabaseInUse
from app.db.migrate import KEPT_BACKUPS, DatabaseError, alembic_config, upgrade
from app.db.models import Base, Conversation, Generation, Message, Role, State


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "pagewell.db"


@pytest.fixture
async def database(path: Path) -> AsyncIterator[Database]:
    database = Database(path)
    await database.open()
    yield database
    await database.close()


def _engine(path: Path) -> Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    return create_engine(URL.create("sqlite", database=str(path)))


def _old_file(path: Path, revision: str = "0001") -> None:
    engine = _engine(path)
    with engine.connect() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.execute(text("INSERT INTO conversations VALUES (7, 'kept', 1, '2026-01-01 00:00:00', '2026-01-01 00:00:00')"))
        connection.execute(text("INSERT INTO messages VALUES (1, 7, NULL, 'user', 'still here', '2026-01-01 00:00:00')"))
        connection.commit()
    engine.dispose()


def test_a_fresh_file_has_exactly_the_models_tables(path: Path) -> None:
    assert upgrade(path) is None
    engine = _engine(path)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


async def test_an_old_file_is_backed_up_and_upgraded_with_its_chats(path: Path) -> None:
    _old_file(path)
    database = Database(path)
    await database.open()
    async with database.session() as session:
        assert (await session.get(Conversation, 7)).title == "kept"
        assert (await session.get(Message, 1)).role is Role.USER
        session.add(Generation(message_id=1, state=State.DONE))
        await session.commit()
    await database.close()

    (backup,) = path.parent.glob("*.backup")
    assert ".0001." in backup.name
    with closing(sqlite3.connect(backup)) as copy:
        assert copy.execute("SELECT text FROM messages").fetchall() == [("still here",)]
        assert copy.execute("SELECT name FROM sqlite_master WHERE name = 'generations'").fetchall() == []


async def test_opening_again_changes_and_copies_nothing(path: Path, database: Database) -> None:
    await database.close()
    assert upgrade(path) is None
    assert list(path.parent.glob("*.backup")) == []


def test_the_backup_holds_what_is_still_in_the_write_ahead_log(path: Path) -> None:
    _old_file(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        writer.execute("INSERT INTO messages VALUES (2, 7, 1, 'user', 'in the log', '2026-01-01 00:00:00')")
        backup = upgrade(path)
    with closing(sqlite3.connect(backup)) as copy:
        assert copy.execute("SELECT text FROM messages ORDER BY id").fetchall() == [("still here",), ("in the log",)]


def test_only_the_newest_backups_are_kept(path: Path) -> None:
    path.parent.mkdir(parents=True)
    for n in range(KEPT_BACKUPS + 3):
        path.with_name(f"{path.name}.0000.{n}.backup").touch()
    _old_file(path)
    backup = upgrade(path)
    assert len(list(path.parent.glob("*.backup"))) == KEPT_BACKUPS
    assert backup.exists()


def test_a_file_of_a_newer_version_is_refused_untouched(path: Path) -> None:
    _old_file(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    before = path.read_bytes()
    with pytest.raises(DatabaseError, match="newer Pagewell"):
        upgrade(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("begun", ["0001", None], ids=["an old file", "a new file"])
def test_an_upgrade_that_is_cut_off_can_be_done_again(path: Path, begun: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if begun:
        _old_file(path)
    create_index = Operations.create_index

    def cut_off(self: Operations, name: str, table: str, *args: object, **kwargs: object) -> None:
        if table == "generations":
            raise KeyboardInterrupt
        create_index(self, name, table, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Operations, "create_index", cut_off)
        upgrade(path)
    with closing(sqlite3.connect(path)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert "generations" not in tables and ("messages" in tables) == bool(begun), "all of it, or nothing"
    upgrade(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM generations").fetchall() == [(0,)]
        assert connection.execute("SELECT count(*) FROM messages").fetchall() == [(1 if begun else 0,)]


def test_a_file_that_is_no_database_is_a_clear_error(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_bytes(b"not a database, certainly not one" * 100)
    with pytest.raises(DatabaseError, match="cannot be opened"):
        upgrade(path)


async def test_a_second_server_on_the_same_file_is_refused_in_words(path: Path, database: Database) -> None:
    code = f"from app.db.database import Database; from pathlib import Path; Database(Path({str(path)!r})).try_out()"
    second = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert second.returncode == 1 and f"Another Pagewell (process {os.getpid()})" in second.stderr
    with pytest.raises(DatabaseInUse) as refusal:
        Database(path).try_out()
    assert "PAGEWELL_HOME" in refusal.value.hint
    await database.close()
    Database(path).try_out()


def test_a_lock_goes_with_its_holder(path: Path) -> None:
    code = f"import os, pathlib, app.db.database as d; d.Database(pathlib.Path({str(path)!r})).claim(); os._exit(1)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 1
    assert path.exists()
    Database(path).try_out()


async def test_the_file_is_in_wal_mode_with_foreign_keys(database: Database) -> None:
    async with database.session() as session:
        assert (await session.execute(text("PRAGMA journal_mode"))).scalar() == "wal"
        assert (await session.execute(text("PRAGMA foreign_keys"))).scalar() == 1


async def test_deleting_a_conversation_takes_a_chain_of_thousands_with_it(database: Database) -> None:
    async with database.session() as session:
        conversation = Conversation(title="long")
        session.add(conversation)
        await session.flush()
        await session.execute(
            Message.__table__.insert(),
            [
                {
                    "id": n,
                    "conversation_id": conversation.id,
                    "parent_id": n - 1 if n > 1 else None,
                    "role": Role.USER,
                    "text": "",
                }
                for n in range(1, 2501)
            ],
        )
        session.add(Generation(message_id=2500))
        await session.commit()
        await session.delete(conversation)
        await session.commit()
        for table in (Message, Generation):
            assert (await session.execute(select(func.count()).select_from(table))).scalar() == 0
