"""Messages, the sidebar and the model as the templates take them, and the HTML of each part of the page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from markupsafe import Markup

from app.chat.events import Cursor
from app.chat.service import MAX_TOKENS, ChatService, Opened, answered_last, can_go_on, reached_limit
from app.db.models import Conversation, Generation, Message, Role, State
from app.errors import UnknownModel
from app.generation.hub import GenerationHub
from app.generation.live import Live, PageOps
from app.models.host import ModelHost
from app.models.pool import ModelPool
from ui import markdown
from ui.render import render

SUGGESTIONS = (
    ("Explain", "Explain how a hash table works, with a small example."),
    ("Write", "Write a short poem about rain on a tin roof."),
    ("Code", "Write a Python function that reverses the words of a sentence."),
)


@dataclass(slots=True, frozen=True)
class MessageView:
    """One bubble. Of a running answer: `ops` is what it shows and the number to go on from."""

    message: Message
    generation: Generation | None
    state: State | None
    html: Markup
    ops: PageOps | None = None
    n_prompt: int = 0
    model: str = ""

    @property
    def id(self) -> int:
        return self.message.id

    @property
    def is_user(self) -> bool:
        return self.message.role is Role.USER

    @property
    def can_try_again(self) -> bool:
        return self.generation is not None and can_go_on(self.generation)

    @property
    def reached_limit(self) -> bool:
        return self.generation is not None and reached_limit(self.generation)


class Views:
    """Reads the hub and the pool at the instant of rendering."""

    def __init__(self, service: ChatService, hub: GenerationHub, pool: ModelPool) -> None:
        self._service = service
        self._hub = hub
        self._pool = pool

    async def page(self, opened: Opened) -> str:
        await self._pool.look()
        messages = await self._messages(opened.branch)
        return render("page.html", **self._chat(opened, messages), **self._shared)

    async def chat(self, opened: Opened) -> str:
        """The main part alone, for a page whose new chat has just begun."""
        await self._pool.look()
        messages = await self._messages(opened.branch)
        return render("swap_chat.html", **self._chat(opened, messages), **self._shared)

    async def exchange(self, question: Message, answer: Message) -> str:
        """Both new bubbles at the end of the messages, and the composer's button."""
        messages = await self._messages([question, answer])
        running = self._running_in(answer.conversation_id)
        return render("swap_exchange.html", messages=messages, running=running, **self._shared)

    async def article(self, message: Message) -> str:
        """A message in the place of what the page shows of it, and the composer's button."""
        (view,) = await self._messages([message])
        return render("swap_article.html", message=view, running=self._running_in(message.conversation_id), **self._shared)

    def ops(self, live: Live, ops: PageOps) -> str:
        """What is new of a running answer."""
        return render("swap_ops.html", id=live.message_id, ops=ops, n_prompt=live.n_prompt, model=live.model, **self._shared)

    async def sidebar(self, current: int | None) -> str:
        """The list of conversations, and the current one's title, in place."""
        conversations = await self._service.conversations()
        shown = next((c for c in conversations if c.id == current), None)
        return render("swap_sidebar.html", groups=self._groups(conversations), current=current, conversation=shown)

    def item(self, conversation: Conversation, current: int | None) -> str:
        """One line of the list, and the title if it is the current one's."""
        busy = self._hub.running_in(conversation.id) is not None
        return render("swap_item.html", conversation=conversation, busy=busy, current=current)

    def rename_form(self, conversation: Conversation, current: int | None) -> str:
        return render("rename.html", conversation=conversation, current=current)

    def model(self) -> str:
        """What is known of the models in use, for the header and the empty page."""
        return render("swap_model.html", **self._shared)

    @property
    def _shared(self) -> dict[str, Any]:
        return {"host": self._pool.main, "shown": self._shown(), "max_tokens": MAX_TOKENS}

    def _shown(self) -> list[ModelHost]:
        """Models in memory, on their way, or whose load has failed; the main one where there is none of them."""
        return [host for host in self._pool.hosts if host.state != "unloaded"] or [self._pool.main]

    def _chat(self, opened: Opened, messages: list[MessageView]) -> dict[str, Any]:
        conversation = opened.conversation
        last, chosen, gone = answered_last(opened.branch), None, ""
        try:
            chosen = self._pool.get(last)
        except UnknownModel:  # the person says which other one goes on
            gone = last
        return {
            "models": self._pool.hosts,
            "chosen": chosen,
            "gone": gone,
            "groups": self._groups(opened.conversations),
            "conversation": conversation,
            "current": conversation.id if conversation else None,
            "messages": messages,
            "running": self._running_in(conversation.id) if conversation else None,
            "cursor": _cursor(opened, messages),
            "suggestions": SUGGESTIONS,
        }

    def _running_in(self, conversation_id: int) -> int | None:
        live = self._hub.running_in(conversation_id)
        return live.generation_id if live else None

    async def _messages(self, branch: Sequence[Message]) -> list[MessageView]:
        """Running answers are read last, in the same instant as the template, so that their number fits their text."""
        current, html = list(branch), dict[int, Markup]()
        while pending := [i for i, message in enumerate(current) if message.id not in html and not self._is_live(message)]:
            for i in pending:
                generation = current[i].generation
                if generation and generation.state is State.RUNNING:
                    current[i] = await self._service.message(current[i].id)  # it ended since it was read
            # A long chat takes a while to render; other requests go on meanwhile.
            html |= await asyncio.to_thread(_render, [current[i] for i in pending])
        return [self._message(message, html.get(message.id, Markup(""))) for message in current]

    def _is_live(self, message: Message) -> bool:
        live = self._hub.get(message.generation.id) if message.generation else None
        return live is not None and not live.ended

    def _message(self, message: Message, html: Markup) -> MessageView:
        generation = message.generation
        if message.role is not Role.ASSISTANT or generation is None:
            return MessageView(message, None, None, Markup(""))
        live = self._hub.get(generation.id)
        if live is not None and not live.ended:
            return MessageView(message, generation, State.RUNNING, Markup(""), live.snapshot(), live.n_prompt, live.model)
        # A row that is running, but not here, was left by a program that is gone.
        state = State.INTERRUPTED if generation.state is State.RUNNING else generation.state
        return MessageView(message, generation, state, html)

    def _groups(self, conversations: Sequence[Conversation]) -> list[tuple[str, list[tuple[Conversation, bool]]]]:
        """[(heading, [(conversation, whether an answer is being written), ...]), ...] by age."""
        busy = self._hub.busy_conversations()
        today = datetime.now().astimezone().date()
        groups: dict[str, list[tuple[Conversation, bool]]] = {}
        for conversation in conversations:
            age = today - conversation.updated_at.astimezone().date()
            groups.setdefault(_heading(age), []).append((conversation, conversation.id in busy))
        return list(groups.items())


def _render(messages: list[Message]) -> dict[int, Markup]:
    """{id: HTML}; what the person wrote is shown as it is."""
    return {m.id: Markup(markdown.render(m.text) if m.role is Role.ASSISTANT else "") for m in messages}


def _cursor(opened: Opened, messages: list[MessageView]) -> Cursor:
    """Where the page's stream goes on: after what the page shows of the answer that is being written."""
    for view in messages:
        if view.ops is not None and view.generation is not None:
            return replace(opened.cursor, generation_id=view.generation.id, seq=view.ops.seq)
    return opened.cursor


def _heading(age: timedelta) -> str:
    if age < timedelta(days=1):
        return "Today"
    if age < timedelta(days=2):
        return "Yesterday"
    return "Last 30 days" if age < timedelta(days=30) else "Older"
