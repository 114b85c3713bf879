"""Conversations as trees of messages.

Why a tree: an edited question or a second answer is a sibling, never an overwrite, and a branch shares its trunk's KV
blocks because a block's key is a hash of its parent's key. So every message knows its parent, and a conversation only
remembers the leaf of the branch that is shown.

Parents do not cascade on delete: SQLite nests one trigger for each step of a chain and gives up after a thousand, which
a long chat has. Messages go with their conversation instead.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("leaf_id", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_conversations_updated_at", "conversations", ["updated_at"])
    op.create_table(
        "messages",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column(
            "conversation_id",
            sa.Integer(),
            sa.ForeignKey("conversations.id", ondelete="CASCADE", name="fk_messages_conversation_id"),
            nullable=False,
        ),
        sa.Column("parent_id", sa.Integer(), sa.ForeignKey("messages.id", name="fk_messages_parent_id"), nullable=True),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_messages_conversation_id", "messages", ["conversation_id"])
    op.create_index("ix_messages_parent_id", "messages", ["parent_id"])


def downgrade() -> None:
    op.drop_table("messages")
    op.drop_table("conversations")
