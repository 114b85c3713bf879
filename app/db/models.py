"""The tables: a conversation is a tree of messages, and each assistant message was written by generations.

Times are UTC. Columns `*_s` are seconds, `n_*` are tokens.
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime

from advanced_alchemy.types import DateTimeUTC
from sqlalchemy import Enum, ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship


class Role(enum.StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class State(enum.StrEnum):
    """How far a generation came. Only RUNNING changes."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """The person stopped it."""
    INTERRUPTED = "interrupted"
    """The server went away in the middle; the text so far is kept."""
    FAILED = "failed"
    """`error` and `hint` say why and what to do."""


def _enum(kind: type[enum.StrEnum]) -> Enum:
    return Enum(kind, native_enum=False, create_constraint=False, length=16, values_callable=lambda k: [e.value for e in k])


def now() -> datetime:
    return datetime.now(UTC)


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Conversation(Base):
    __tablename__ = "conversations"
    # A deleted conversation's id must not come back: a tab may still show it.
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str]
    leaf_id: Mapped[int | None]
    """Last message of the branch that is shown. No foreign key: messages already point here, and SQLite cannot add one later."""
    created_at: Mapped[datetime] = mapped_column(DateTimeUTC(timezone=True), default=now)
    updated_at: Mapped[datetime] = mapped_column(DateTimeUTC(timezone=True), default=now, index=True)


class Message(Base):
    __tablename__ = "messages"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(primary_key=True)
    conversation_id: Mapped[int] = mapped_column(ForeignKey("conversations.id", ondelete="CASCADE"), index=True)
    # No cascade along parents: SQLite nests one trigger per generation of a chain and gives up after a thousand.
    parent_id: Mapped[int | None] = mapped_column(ForeignKey("messages.id"), index=True)
    role: Mapped[Role] = mapped_column(_enum(Role))
    text: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(DateTimeUTC(timezone=True), default=now)

    generations: Mapped[list[Generation]] = relationship(
        order_by="Generation.id", back_populates="message", lazy="raise", passive_deletes=True
    )

    @property
    def generation(self) -> Generation | None:
        """The latest one; `generations` must have been loaded."""
        return self.generations[-1] if self.generations else None


class Generation(Base):
    """One run of the engine that writes, or continues, an assistant message."""

    __tablename__ = "generations"
    __table_args__ = {"sqlite_autoincrement": True}

    id: Mapped[int] = mapped_column(primary_key=True)
    message_id: Mapped[int] = mapped_column(ForeignKey("messages.id", ondelete="CASCADE"), index=True)
    state: Mapped[State] = mapped_column(_enum(State), default=State.RUNNING, index=True)
    model: Mapped[str] = mapped_column(default="")
    finish_reason: Mapped[str | None]
    """stop or length, once done; also length when it failed because the prompt did not fit the window."""
    error: Mapped[str | None]
    hint: Mapped[str | None]
    n_prompt: Mapped[int | None]
    n_cached: Mapped[int | None]
    n_output: Mapped[int | None]
    queued_s: Mapped[float | None]
    ttft_s: Mapped[float | None]
    total_s: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(DateTimeUTC(timezone=True), default=now)
    ended_at: Mapped[datetime | None] = mapped_column(DateTimeUTC(timezone=True))

    message: Mapped[Message] = relationship(back_populates="generations", lazy="raise")

    @property
    def tokens_per_s(self) -> float | None:
        """Decode speed: the tokens after the first, over the time after the first."""
        if not self.n_output or self.n_output < 2 or self.ttft_s is None or self.total_s is None:
            return None
        decode_s = self.total_s - self.ttft_s
        return (self.n_output - 1) / decode_s if decode_s > 0 else None
