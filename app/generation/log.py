"""The durable side of a generation: its row and its message's text, each write in a short session of its own."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import update

from app.db.database import Database
from app.db.models import Generation, Message, State, now
from engine.types import Usage


@dataclass(slots=True, frozen=True)
class Outcome:
    """How a generation ended."""

    state: State
    finish_reason: str | None = None
    usage: Usage | None = None
    error: str | None = None
    hint: str | None = None


class GenerationLog:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def save_text(self, message_id: int, text: str) -> None:
        async with self._database.session() as session:
            await session.execute(update(Message).where(Message.id == message_id).values(text=text))
            await session.commit()

    async def finish(self, generation_id: int, message_id: int, text: str, outcome: Outcome) -> None:
        """Text and outcome in one transaction. Rows that were deleted meanwhile stay deleted."""
        usage = outcome.usage
        values = {"state": outcome.state, "finish_reason": outcome.finish_reason, "error": outcome.error, "hint": outcome.hint}
        if usage is not None:
            values |= {
                "n_prompt": usage.n_prompt,
                "n_cached": usage.n_cached,
                "n_output": usage.n_output,
                "queued_s": usage.queued_s,
                "ttft_s": usage.ttft_s,
                "total_s": usage.total_s,
            }
        async with self._database.session() as session:
            await session.execute(update(Message).where(Message.id == message_id).values(text=text))
            await session.execute(update(Generation).where(Generation.id == generation_id).values(ended_at=now(), **values))
            await session.commit()

    async def mark_interrupted(self) -> None:
        """At the start of the server: whatever is still marked running was cut off by the last end of the program."""
        async with self._database.session() as session:
            await session.execute(
                update(Generation).where(Generation.state == State.RUNNING).values(state=State.INTERRUPTED, ended_at=now())
            )
            await session.commit()
