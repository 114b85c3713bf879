"""A Responses-shaped body (`input`, flat tools) that arrived at the chat route, as the chat request it means."""

from __future__ import annotations

from typing import Any

from app.openai.schemas import ChatRequest

_TEXT_PARTS = frozenset({"input_text", "output_text", "summary_text", "text"})


def to_chat(request: ChatRequest) -> ChatRequest:
    """`request` in chat terms; its messages stay when it has some already. Fields are replaced in place."""
    if request.messages is None and request.input is not None:
        request.messages = _messages(request)
        request.max_completion_tokens = request.max_completion_tokens or request.max_output_tokens
    if isinstance(request.text, dict) and request.response_format is None:
        request.response_format = request.text.get("format")
    if request.tools is None and request.functions:
        request.tools = [{"type": "function", "function": function} for function in request.functions]
    if request.tools is not None:
        request.tools = [_tool(tool) for tool in request.tools if tool.get("type", "function") == "function"]
    return request


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _messages(request: ChatRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    if isinstance(request.input, str):
        messages.append({"role": "user", "content": request.input})
        return messages
    for item in request.input or ():
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            _add_call(messages, item)
        elif kind == "function_call_output":
            output = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
    return messages


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Calls that follow one another belong to one assistant message."""
    call = {
        "id": item.get("call_id"),
        "type": "function",
        "function": {"name": item.get("name"), "arguments": item.get("arguments", "")},
    }
    if messages and messages[-1]["role"] == "assistant":
        messages[-1].setdefault("tool_calls", []).append(call)
    else:
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _content(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_part(part) for part in content]


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    if part.get("type") in _TEXT_PARTS:
        return {"type": "text", "text": part.get("text", "")}
    if part.get("type") == "input_image":
        return {"type": "image_url", "image_url": part.get("image_url")}
    return part
