"""Conversations: start, send, continue, rename, delete. No HTTP, no HTML."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased, selectinload

from app.chat.errors import Busy, NotFound, Unusable
from app.chat.events import Changes, Cursor
from app.db.database import Database
from app.db.models import Conversation, Generation, Message, Role, State, now
from app.generation.hub import Chat, GenerationHub
from app.generation.live import Live
from app.models.host import ModelHost
from app.models.pool import ModelPool
from engine.types import FinishReason, SamplingParams

MAX_TOKENS = 2048
"""Most tokens of one answer: a model that never ends by itself must not write in a closed tab for ever."""
TITLE_LENGTH = 60
_MARKS = re.compile(r"^[ \t]*(?:(?:`{3,}|~{3,})[\w+#.-]*|#{1,6} |> ?|[-*+] )|\*\*|`+", re.MULTILINE)
"""Of Markdown; underscores and single stars are left, as they belong to code and sums too."""
_LAST_ID = 2**63 - 1
"""SQLite has no greater one, and its driver raises OverflowError for what is."""
CONTINUABLE = frozenset({State.INTERRUPTED, State.STOPPED, State.FAILED})


def sampling() -> SamplingParams:
    """Chat answers are drawn a little more soberly than the API's default, as chat programs do."""
    return SamplingParams(temperature=0.7, top_p=0.95, max_tokens=MAX_TOKENS)


def reached_limit(generation: Generation) -> bool:
    """Whether an answer ended at MAX_TOKENS, not at the end of the model's window."""
    return generation.finish_reason == FinishReason.LENGTH and (generation.n_output or 0) >= MAX_TOKENS


def answered_last(branch: Sequence[Message]) -> str:
    """Name of the model that wrote the last answer; empty where there is none."""
    return next((m.generation.model for m in reversed(branch) if m.generation is not None), "")


def can_go_on(generation: Generation) -> bool:
    """Whether to continue, or to try again, may succeed."""
    if generation.state is State.FAILED:
        return not _was_too_long(generation)
    return generation.state in CONTINUABLE or reached_limit(generation)


def _was_too_long(generation: Generation | None) -> bool:
    """Whether the chat did not fit the window, so that nothing was computed."""
    return generation is not None and generation.state is State.FAILED and generation.finish_reason == FinishReason.LENGTH


@dataclass(slots=True, frozen=True)
class Opened:
    """What a page shows, and the last change before it was read."""

    conversations: Sequence[Conversation]
    conversation: Conversation | None
    branch: list[Message]
    cursor: Cursor


class ChatService:
    """Whoever writes takes the lock until the change is announced, so that a page is read between two changes."""

    def __init__(self, database: Database, hub: GenerationHub, pool: ModelPool, changes: Changes) -> None:
        self._lock = asyncio.Lock()
        self._database = database
        self._hub = hub
        self._pool = pool
        self._changes = changes

    async def conversations(self) -> Sequence[Conversation]:
        """All of them, the last used first."""
        async with self._database.session() as session:
            newest_first = select(Conversation).order_by(Conversation.updated_at.desc(), Conversation.id.desc())
            return (await session.scalars(newest_first)).all()

    async def open(self, conversation_id: int | None) -> Opened:
        """A conversation as it stands, or the page for a new one. Raises NotFound."""
        async with self._lock, self._database.session() as session:
            conversation = None if conversation_id is None else await _conversation(session, conversation_id)
            branch = await _branch(session, conversation.leaf_id) if conversation else []
            return Opened(await self.conversations(), conversation, branch, self._changes.cursor)

    async def conversation(self, conversation_id: int) -> Conversation:
        async with self._database.session() as session:
            return await _conversation(session, conversation_id)

    async def message(self, message_id: int) -> Message:
        async with self._database.session() as session:
            return await _message(session, message_id)

    async def generation(self, generation_id: int) -> Generation:
        async with self._database.session() as session:
            generation = await session.get(Generation, generation_id)
            if generation is None:
                raise NotFound("This answer is gone.")
            return generation

    async def start(self, text: str, model: str | None = None) -> Conversation:
        """A new conversation with its first question; the answer begins. Without a model's name the main one writes it."""
        text = _question(text)
        host = await self._pool.find(model)
        async with self._lock, self._database.session() as session:
            conversation = Conversation(title=_title(text), leaf_id=None)
            session.add(conversation)
            await session.flush()
            await self._exchange(session, conversation, text, host)
        return conversation

    async def send(self, conversation_id: int, text: str, model: str | None = None) -> tuple[Message, Message]:
        """The person's message and the empty one of the assistant, both saved; the answer begins. Without a model's name the one
        that answered last writes it. Raises UnknownModel for one that is not here any more."""
        text = _question(text)
        host = await self._pool.find(model) if model else None
        async with self._lock, self._database.session() as session:
            conversation = await _conversation(session, conversation_id)
            host = host or await self._pool.find(answered_last(await _branch(session, conversation.leaf_id)))
            return await self._exchange(session, conversation, text, host)

    async def _exchange(
        self, session: AsyncSession, conversation: Conversation, text: str, host: ModelHost
    ) -> tuple[Message, Message]:
        self._require_quiet(conversation.id)
        history = await _branch(session, conversation.leaf_id)
        question = Message(
            conversation_id=conversation.id, parent_id=conversation.leaf_id, role=Role.USER, text=text, generations=[]
        )
        session.add(question)
        await session.flush()
        generation = Generation(model=host.name)
        answer = Message(
            conversation_id=conversation.id, parent_id=question.id, role=Role.ASSISTANT, text="", generations=[generation]
        )
        session.add(answer)
        await session.flush()
        conversation.leaf_id = answer.id
        conversation.updated_at = now()
        # The hub's task reads nothing of this session, but its saves must find the rows: commit before it starts.
        await session.commit()
        live = Live(generation.id, answer.id, conversation.id, model=host.name)
        self._begin(live, host, _chat([*history, question]))
        self._changes.exchanged(conversation.id, question.id, answer.id)
        return question, answer

    async def go_on(self, message_id: int) -> Message:
        """Continue an answer that was cut off (see can_go_on): its text so far becomes the start of the new one. Raises
        UnknownModel where the model that wrote it is not here any more."""
        async with self._lock, self._database.session() as session:
            message = await _message(session, message_id)
            last = message.generation
            conversation = await _conversation(session, message.conversation_id)
            # Later turns answered to what an earlier one said.
            if last is None or not can_go_on(last) or message.id != conversation.leaf_id:
                raise Unusable("This answer cannot be continued.", "Ask a new question instead.")
            self._require_quiet(message.conversation_id)
            branch = await _branch(session, message.id)
            host = await self._pool.find(answered_last(branch))
            generation = Generation(model=host.name)
            message.generations.append(generation)
            chat = _chat(branch)
            await session.commit()
            if not message.text:
                chat.pop()
            # A long text takes a while to render; other requests go on meanwhile.
            live = await asyncio.to_thread(
                Live, generation.id, message.id, message.conversation_id, message.text, model=host.name
            )
            self._begin(live, host, chat)
            self._changes.continued(message.conversation_id, message.id)
        return message

    async def rename(self, conversation_id: int, title: str) -> Conversation:
        title = " ".join(title.split())
        if not title:
            raise Unusable("A chat needs a name.")
        async with self._lock, self._database.session() as session:
            conversation = await _conversation(session, conversation_id)
            conversation.title = title[:200]
            await session.commit()
            self._changes.listed()
        return conversation

    async def delete(self, conversation_id: int) -> None:
        """The conversation and all its messages; what is being written in it is stopped first."""
        while True:
            # Outside the lock: an engine may take seconds over the step that it is in, and every page is read under the lock.
            await self._hub.stop_and_wait(conversation_id)
            async with self._lock, self._database.session() as session:
                conversation = await _conversation(session, conversation_id)
                if self._hub.running_in(conversation_id):
                    continue  # another tab asked again meanwhile
                await session.delete(conversation)
                await session.commit()
                self._changes.deleted(conversation_id)
                return

    def _begin(self, live: Live, host: ModelHost, chat: Chat) -> None:
        self._hub.start(live, host, chat, sampling())

    def _require_quiet(self, conversation_id: int) -> None:
        if self._hub.running_in(conversation_id):
            raise Busy("An answer is being written in this chat.", "Wait for its end, or stop it first.")


async def _conversation(session: AsyncSession, conversation_id: int) -> Conversation:
    conversation = await session.get(Conversation, conversation_id) if conversation_id <= _LAST_ID else None
    if conversation is None:
        raise NotFound("This chat does not exist.", "It may have been deleted in another tab.")
    return conversation


async def _message(session: AsyncSession, message_id: int) -> Message:
    query = select(Message).where(Message.id == message_id).options(selectinload(Message.generations))
    message = (await session.scalars(query)).one_or_none() if message_id <= _LAST_ID else None
    if message is None:
        raise NotFound("This message does not exist.", "Its chat may have been deleted in another tab.")
    return message


async def _branch(session: AsyncSession, leaf_id: int | None) -> list[Message]:
    """From the leaf up to the root, turned around."""
    if leaf_id is None:
        return []
    path = select(Message.id, Message.parent_id).where(Message.id == leaf_id).cte("path", recursive=True)
    parent = aliased(Message)
    path = path.union_all(select(parent.id, parent.parent_id).join(path, parent.id == path.c.parent_id))
    query = select(Message).join(path, Message.id == path.c.id).order_by(Message.id).options(selectinload(Message.generations))
    return list((await session.scalars(query)).all())


def _chat(branch: list[Message]) -> Chat:
    """As the chat template takes it. Answers that stayed empty (failed before their first word) are left out, except the last.

    So are questions that did not fit the window: a shorter one may follow.
    """
    last = branch[-1]
    refused = {m.parent_id for m in branch if not m.text and _was_too_long(m.generation)}
    return [{"role": m.role.value, "content": m.text} for m in branch if (m.text and m.id not in refused) or m is last]


def _question(text: str) -> str:
    text = text.replace("\r\n", "\n").strip()
    if not text:
        raise Unusable("The message is empty.")
    return text


def _title(text: str) -> str:
    line = " ".join(_MARKS.sub("", text).split()) or " ".join(text.split())
    if len(line) <= TITLE_LENGTH:
        return line
    return line[:TITLE_LENGTH].rsplit(" ", 1)[0].rstrip(",.;:") + "…"
