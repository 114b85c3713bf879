"""Abilities: what a chat template can render, found out by rendering small conversations with it.

Templates are programs without a declared interface, and families change theirs between releases. So nothing is
concluded from a model's name: each question is a conversation with known words in it, and the answer is whether they
come out, in order.
"""

from __future__ import annotations

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
    """The template knows the role developer as something other than system."""
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
    calls, results, objects, call_id = _find_calls(render, parts)
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
        tool_calls=calls,
        tool_results=results,
        argument_objects=objects,
        broken_arguments=_shows(render(_call_turns("Kilo1", call_id, parts), tools=[_TOOL]), "Kilo1"),
        short_call_ids=len(call_id) == 9,
    )


_TOOL = {
    "type": "function",
    "function": {
        "name": "tango_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"key1": {"type": "string", "description": "A key."}}},
    },
}


def _find_calls(render: _Render, parts: bool) -> tuple[bool, bool, bool, str]:
    """Are calls rendered? And their results? Are arguments wanted as objects? And a call id that is taken."""
    long_id, short_id = "call_0123456789abcdef", "call00001"
    for call_id in (long_id, short_id):
        for arguments, key in (({"key1": "value1"}, "key1"), ('{"key1": "value1"}', '"key1"')):
            text = render(_call_turns(arguments, call_id, parts), tools=[_TOOL])
            if text and _shows(text, "Alpha1", "tango_tool", key, "value1") and "{'key1'" not in text:
                return True, _shows(text, "Romeo1"), isinstance(arguments, dict), call_id
    turns = [_say(role, text, parts=parts) for role, text in (("user", "Alpha1"), ("assistant", "Bravo1"), ("tool", "Romeo1"))]
    return False, _shows(render(turns), "Romeo1"), False, long_id


def _call_turns(arguments: Any, call_id: str, parts: bool) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "tango_tool", "arguments": arguments}}
    return [
        _say("user", "Alpha1", parts=parts),
        {**_say("assistant", "", parts=parts), "tool_calls": [call]},
        {**_say("tool", "Romeo1", parts=parts), "tool_call_id": call_id, "name": "tango_tool"},
    ]


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
