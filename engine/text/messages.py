"""Messages as clients send them, made into messages that a given chat template takes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine.errors import TemplateError
from engine.text.abilities import Abilities

Message = dict[str, Any]

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""Kinds of content parts that are text, and the field that holds it."""

_SYSTEM_ROLES = ("system", "developer")
_ROLES = (*_SYSTEM_ROLES, "user", "assistant", "tool", "function")
_KNOWN_ROLES = f"Roles are {', '.join(_ROLES)}."


def normalise(messages: Sequence[Mapping[str, Any]], abilities: Abilities) -> list[Message]:
    """Messages for a template of these abilities. Raises TemplateError naming the message or part that cannot be used.

    The result for the first messages does not change when more follow them, so that their prefix stays cached.
    """
    result = [_canonical(message, f"messages[{index}]") for index, message in enumerate(messages)]
    if not result:
        raise TemplateError("There are no messages.", "Send at least one message.")
    result = list(_place_systems(result, abilities))
    result = [spelt for message in result for spelt in _spell_tools(message, abilities)]
    if not abilities.repeats:
        result = _merge_neighbours(result)
    first = next((i for i, message in enumerate(result) if message["role"] not in _SYSTEM_ROLES), 0)
    if result[first]["role"] == "assistant" and not abilities.assistant_first:
        result.insert(first, {"role": "user", "content": ""})
    return [_shape(message, abilities) for message in result]


def all_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The contents of all messages in one string. Raises TemplateError as `normalise` does."""
    return "\n".join(_canonical(message, f"messages[{index}]")["content"] for index, message in enumerate(messages))


def _canonical(message: Mapping[str, Any], where: str) -> Message:
    """One message with string content, a known shape of tool calls, and without null fields."""
    if not isinstance(message, Mapping):
        raise TemplateError(f"{where} is {type(message).__name__}, not an object with role and content.", param=where)
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise TemplateError(f"{where} has no role.", _KNOWN_ROLES, f"{where}.role")
    if role not in _ROLES:
        raise TemplateError(f"{where}.role is not known.", _KNOWN_ROLES, f"{where}.role")
    result = {key: value for key, value in message.items() if value is not None}
    result["role"] = "tool" if role == "function" else role
    result["content"] = _text(message.get("content"), f"{where}.content")
    calls = list(_calls(result.pop("tool_calls", ()), result.pop("function_call", None), f"{where}.tool_calls"))
    if calls:
        result["tool_calls"] = calls
    return result


def _text(content: Any, where: str) -> str:
    """Content of any accepted shape as one string; text parts are joined by newlines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise TemplateError(f"{where} is {type(content).__name__}, not a string or a list of parts.", param=where)
    return "\n".join(_part_text(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if part is None:
        return ""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise TemplateError(f"{where} is {type(part).__name__}, not a content part.", param=where)
    kind = part.get("type", "text")
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise TemplateError(f"{where} is of type {kind}, but this model reads text only.", "Send text parts.", where)
    text = part.get(field)
    if text is not None and not isinstance(text, str):
        raise TemplateError(f"{where}.{field} is {type(text).__name__}, not a string.", param=f"{where}.{field}")
    return text or ""


def _calls(calls: Any, legacy: Any, where: str) -> Iterator[Message]:
    """Tool calls as {id, type, function: {name, arguments}}; `legacy` is the single function_call of older clients."""
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise TemplateError(f"{where} is {type(calls).__name__}, not a list.", param=where)
    for index, call in enumerate([*calls, *([legacy] if legacy else [])]):
        if not isinstance(call, Mapping):
            raise TemplateError(f"{where}[{index}] is {type(call).__name__}, not an object.", param=where)
        function = call.get("function") if isinstance(call.get("function"), Mapping) else call
        yield {
            "id": str(call.get("id") or f"call{index:05d}"),
            "type": "function",
            "function": {"name": str(function.get("name") or ""), "arguments": function.get("arguments")},
        }


def _argument_object(arguments: Any, *, text: bool) -> Any:
    """Arguments as the object that they should be. A model may have written something else: that stays as `text`, if
    the template takes it, else it becomes an object around the text."""
    if isinstance(arguments, str) and arguments.strip():
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            value = arguments
    else:
        value = None if isinstance(arguments, str) else arguments
    if value is None or isinstance(value, dict):
        return value or {}
    return arguments if text else {"arguments": arguments}


def _argument_text(arguments: Any) -> str:
    """Arguments as JSON text; what came as text stays as it was written."""
    if isinstance(arguments, str):
        return arguments if arguments.strip() else "{}"
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)


def _place_systems(messages: list[Message], abilities: Abilities) -> Iterator[Message]:
    """System and developer messages where they stand, in the form the template takes there."""
    n_leading = next((i for i, m in enumerate(messages) if m["role"] not in _SYSTEM_ROLES), len(messages))
    leading = [m if abilities.developer else {**m, "role": "system"} for m in messages[:n_leading]]
    if abilities.system and not abilities.several_systems and leading:
        leading = [functools.reduce(_joined, leading)]
    for message in leading:
        yield message if abilities.system else {**message, "role": "user"}
    for message in messages[n_leading:]:
        if message["role"] not in _SYSTEM_ROLES:
            yield message
        elif abilities.late_system:
            yield {**message, "role": "system"}
        else:
            yield {**message, "role": "user", "content": f"<system>\n{message['content']}\n</system>"}


def _spell_tools(message: Message, abilities: Abilities) -> Iterator[Message]:
    """Calls and results as text where the template would drop them, in the form that Hermes and Qwen models use."""
    content, calls = message["content"], message.get("tool_calls")
    if message["role"] == "tool" and not abilities.tool_results:
        yield {**message, "role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    elif calls and not abilities.tool_calls:
        yield _without_calls(message) | {"content": "\n".join(filter(None, [content, *map(_call_text, calls)]))}
    elif calls and content and abilities.bare_calls:
        yield _without_calls(message)
        yield {"role": message["role"], "content": "", "tool_calls": calls}
    else:
        yield message


def _without_calls(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != "tool_calls"}


def _call_text(call: Message) -> str:
    name, arguments = (call["function"][key] for key in ("name", "arguments"))
    body = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {_argument_text(arguments)}}}'
    return f"<tool_call>\n{body}\n</tool_call>"


def _merge_neighbours(messages: list[Message]) -> list[Message]:
    """User and assistant messages that follow one of the same role become one with it."""
    result: list[Message] = []
    for message in messages:
        previous = result[-1] if result else None
        if previous and message["role"] == previous["role"] in ("user", "assistant") and "tool_calls" not in previous:
            result[-1] = _joined(previous, message)
        else:
            result.append(message)
    return result


def _joined(first: Message, second: Message) -> Message:
    return {**second, **first, "content": "\n\n".join(filter(None, (first["content"], second["content"])))}


def _shape(message: Message, abilities: Abilities) -> Message:
    """The last step: content, arguments and ids in the form that the template reads."""
    result = dict(message)
    if abilities.content_parts:
        result["content"] = [{"type": "text", "text": message["content"]}]
    if "tool_calls" in message:
        if abilities.bare_calls:
            result["content"] = None
        result["tool_calls"] = [_shape_call(call, abilities) for call in message["tool_calls"]]
    if abilities.short_call_ids and isinstance(message.get("tool_call_id"), str):
        result["tool_call_id"] = _short_id(message["tool_call_id"])
    return result


def _shape_call(call: Message, abilities: Abilities) -> Message:
    name, arguments = (call["function"][key] for key in ("name", "arguments"))
    if abilities.argument_objects:
        arguments = _argument_object(arguments, text=abilities.broken_arguments)
    else:
        arguments = _argument_text(arguments)
    call_id = _short_id(call["id"]) if abilities.short_call_ids else call["id"]
    return {**call, "id": call_id, "function": {"name": name, "arguments": arguments}}


def _short_id(call_id: str) -> str:
    """Nine letters and digits, which Mistral's templates insist on; the same for the same id."""
    if len(call_id) == 9 and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:9]
