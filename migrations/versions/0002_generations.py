"""Generations: the log of runs that wrote the assistant's messages.

Why: a message's text alone does not say whether its answer is still being written, was stopped, failed, or was cut off
by a restart, nor what it cost. One row for each run of the engine holds its state, what to tell the person when it
failed, and its measurements. A message that is continued after an interruption has several.

The index on the state serves the start of the server, which turns rows still marked running into interrupted ones.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "generations",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column(
            "message_id",
            sa.Integer(),
            sa.ForeignKey("messages.id", ondelete="CASCADE", name="fk_generations_message_id"),
            nullable=False,
        ),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("finish_reason", sa.String(), nullable=True),
        sa.Column("error", sa.String(), nullable=True),
        sa.Column("hint", sa.String(), nullable=True),
        sa.Column("n_prompt", sa.Integer(), nullable=True),
        sa.Column("n_cached", sa.Integer(), nullable=True),
        sa.Column("n_output", sa.Integer(), nullable=True),
        sa.Column("queued_s", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("total_s", sa.Double(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_generations_message_id", "generations", ["message_id"])
    op.create_index("ix_generations_state", "generations", ["state"])


def downgrade() -> None:
    op.drop_table("generations")
