"""What a request may demand. A demand that cannot be enforced is refused by name: an answer that only looks obedient
is worse than none."""

from __future__ import annotations

from typing import Any

from app.errors import NotAvailable
from app.openai.schemas import ChatRequest, CompletionRequest, Sampling
from engine.errors import InvalidRequest

CONSTRAINTS = (
    "structured_outputs",
    "structural_tag",
    "grammar",
    "json_schema",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "format",
)
_UNENFORCED = "answers cannot be held to a format"
_OTHERS = {
    "allowed_token_ids": "answers cannot be held to some tokens",
    "bad_words": "words cannot be banned",
    "logits_processors": "no code of clients runs here",
    "truncate_prompt_tokens": "prompts are never cut",
}
_NOTHING = (None, "", {}, [], False)
_SCHEMAS = ("json_schema", "guided_json", "format")
"""An empty object here demands JSON of any shape."""


def refuse_unavailable(request: ChatRequest | CompletionRequest) -> None:
    """Raise InvalidRequest for demands that nothing here enforces, and for fields that contradict each other."""
    _refuse_constraints(request)
    if isinstance(request, ChatRequest):
        _refuse_forced_tools(request)
        if isinstance(request.modalities, list) and any(kind != "text" for kind in request.modalities):
            raise NotAvailable("modalities", "answers are text")
    if request.stream and request.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs", "`prompt_logprobs` come only with the whole answer.", "Leave out `stream`.")


def _refuse_constraints(request: Sampling) -> None:
    for name, why in (*((name, _UNENFORCED) for name in CONSTRAINTS), *_OTHERS.items()):
        value = getattr(request, name)
        if value not in _NOTHING or (name in _SCHEMAS and value == {}):
            raise NotAvailable(name, why)
    form = request.response_format
    if form is None:
        return
    kind = form.get("type") if isinstance(form, dict) else form
    if kind not in ("text", None):
        raise NotAvailable("response_format", _UNENFORCED)


def _refuse_forced_tools(request: ChatRequest) -> None:
    if is_forced(request.tool_choice):
        raise NotAvailable("tool_choice", "no tool can be forced; `auto` and `none` are taken")
    if is_forced(request.function_call):
        raise NotAvailable("function_call", "no function can be forced; `auto` and `none` are taken")


def is_forced(choice: str | dict[str, Any] | None) -> bool:
    """Whether a tool choice demands a call: required, or a named tool."""
    if isinstance(choice, dict):
        return choice.get("type") not in ("auto", "none")
    return choice not in (None, "", "auto", "none")
