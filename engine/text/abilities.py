"""Abilities: what a chat template can render, found out by rendering small conversations with it.

Templates are programs without a declared interface, and families change theirs between releases. So nothing is
concluded from a model's name: each question is a conversation with known words in it, and the answer is whether they
come out, in order.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_Render = Callable[..., str | None]
"""render(messages, **variables) -> text, or None where the template fails."""


@dataclass(slots=True, frozen=True)
class Abilities:
    """Answers, in the order in which they are found out; later questions use earlier answers."""

    content_parts: bool
    """Content must be a list of parts; a string would vanish."""
    system: bool
    """A first system message is rendered."""
    several_systems: bool
    """So are two at the start."""
    late_system: bool
    """A system message in mid-conversation is rendered where it stands."""
    developer: bool
    """The template names the role developer, so first messages of that role keep it."""
    repeats: bool
    """Two messages of one role may follow each other."""
    assistant_first: bool
    """A conversation may begin with the assistant, as one with a greeting does."""
    tools: bool
    """Descriptions of tools are rendered."""
    tool_calls: bool
    """An assistant's calls are rendered."""
    tool_results: bool
    """Messages of role tool are rendered."""
    bare_calls: bool
    """An assistant's calls are rendered only where its content is null."""
    argument_objects: bool
    """Arguments of calls are wanted as objects, not as JSON text."""
    broken_arguments: bool
    """Arguments that are no JSON object may be given as the text they are."""
    short_call_ids: bool
    """Call ids must be nine letters and digits."""


def find_abilities(render: _Render, source: str) -> Abilities:
    """Ask the template whose `source` this is; about a dozen renderings of a few words."""
    parts = not _shows(render([_say("user", "Alpha1")]), "Alpha1") and _shows(
        render([_say("user", "Alpha1", parts=True)]), "Alpha1"
    )

    def shows(*turns: tuple[str, str], words: str | None = None) -> bool:
        text = render([_say(role, word, parts=parts) for role, word in turns])
        return _shows(text, *(words.split() if words else [word for _, word in turns]))

    system = shows(("system", "Sierra1"), ("user", "Alpha1"))
    start = [("system", "Sierra1")] if system else []
    talk = [*start, ("user", "Alpha1"), ("assistant", "Bravo1")]
    form = _find_call_form(render, parts)
    results = [("user", "Alpha1"), ("assistant", "Bravo1"), ("tool", "Romeo1")]
    return Abilities(
        content_parts=parts,
        system=system,
        several_systems=shows(("system", "Sierra1"), ("system", "Sierra2"), ("user", "Alpha1")),
        late_system=shows(*talk, ("system", "Sierra2"), ("user", "Alpha2"), words="Bravo1 Sierra2 Alpha2")
        and shows(*talk, ("user", "Alpha2"), ("system", "Sierra2"), words="Alpha2 Sierra2"),
        developer=system and "developer" in source,
        repeats=shows(*start, ("user", "Alpha1"), ("user", "Alpha2"))
        and shows(*talk, ("assistant", "Bravo2"), ("user", "Alpha2"), words="Bravo1 Bravo2 Alpha2"),
        assistant_first=shows(*start, ("assistant", "Bravo1"), ("user", "Alpha1"), words="Bravo1 Alpha1"),
        tools=_shows(render([_say("user", "Alpha1", parts=parts)], tools=[_TOOL]), "tango_tool"),
        tool_calls=form is not None,
        tool_results=_shows(form.render(render, _ARGUMENTS), "Romeo1") if form else shows(*results),
        bare_calls=form is not None and form.content is None,
        argument_objects=form is not None and form.objects,
        broken_arguments=form is not None and _shows(form.render(render, "Kilo1"), "Kilo1"),
        short_call_ids=form is not None and form.call_id == _SHORT_ID,
    )


_TOOL = {
    "type": "function",
    "function": {
        "name": "tango_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"key1": {"type": "string", "description": "A key."}}},
    },
}


_ARGUMENTS = {"key1": "value1"}
_LONG_ID, _SHORT_ID = "call_0123456789abcdef", "call00001"


@dataclass(slots=True, frozen=True)
class _CallForm:
    """One way to write an assistant's call and its result."""

    call_id: str
    content: Any
    objects: bool
    parts: bool

    def render(self, render: _Render, arguments: Any) -> str | None:
        if arguments is _ARGUMENTS and not self.objects:
            arguments = json.dumps(arguments)
        call = {"id": self.call_id, "type": "function", "function": {"name": "tango_tool", "arguments": arguments}}
        turns = [
            _say("user", "Alpha1", parts=self.parts),
            {"role": "assistant", "content": self.content, "tool_calls": [call]},
            {**_say("tool", "Romeo1", parts=self.parts), "tool_call_id": self.call_id, "name": "tango_tool"},
        ]
        return render(turns, tools=[_TOOL])


def _find_call_form(render: _Render, parts: bool) -> _CallForm | None:
    """The first form in which name and arguments of a call come out; None where the template leaves calls out."""
    contents = (_say("assistant", "", parts=parts)["content"], None)
    for call_id, content, objects in itertools.product((_LONG_ID, _SHORT_ID), contents, (True, False)):
        form = _CallForm(call_id, content, objects, parts)
        text = form.render(render, _ARGUMENTS)
        key = "key1" if objects else '"key1"'
        if text and _shows(text, "Alpha1", "tango_tool", key, "value1") and "{'key1'" not in text:
            return form
    return None


def _say(role: str, text: str, *, parts: bool = False) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}


def _shows(text: str | None, *words: str) -> bool:
    """Do the words come in this order?"""
    at = 0
    for word in words:
        at = (text or "").find(word, at)
        if at < 0:
            return False
        at += len(word)
    return True
