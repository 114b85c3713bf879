"""Runs migrations on the connection that app.db.migrate hands over, or on the person's own file for `alembic` by hand."""

from __future__ import annotations

from alembic import context
from sqlalchemy import URL, Connection, create_engine

from app.db.migrate import begin_for_real
from app.db.models import Base
from app.paths import database_path


def run(connection: Connection) -> None:
    # SQLite cannot alter most things in place: Alembic copies the table instead. It can take back changes of tables, which
    # Alembic does not know: an upgrade happens whole, with the note that it did, or not at all.
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        transaction_per_migration=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
    given.commit()
else:
    with begin_for_real(create_engine(URL.create("sqlite", database=str(database_path())))).connect() as own:
        run(own)
        own.commit()
