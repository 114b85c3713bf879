"""What the OpenAI-shaped routes answer. Fields that do not apply are left out, never null, except where clients expect null."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from app.models.host import State
from engine.types import Usage as EngineUsage


class PromptDetails(Struct):
    cached_tokens: int


class Usage(Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    content: list[ChatLogprob]


class ChatMessage(Struct):
    content: str
    role: Literal["assistant"] = "assistant"


class PromptLogprob(Struct):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""vLLM's shape: for each prompt token its own entry and the likeliest ones, by token id; null for the first token."""


class ChatChoice(Struct):
    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Struct):
    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | UnsetType = UNSET


class ChatChunk(Struct):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET


class TextLogprobs(Struct):
    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class TextChoice(Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: Usage | UnsetType = UNSET


class ModelMeta(Struct):
    n_ctx: int
    n_params: int
    size: int


class ModelEntry(Struct):
    """One model of the list. The window is the one in force, not the one the model was trained with."""

    id: str
    created: int
    state: State
    loaded: bool
    progress: float
    capabilities: list[str]
    object: Literal["model"] = "model"
    owned_by: str = "pagewell"
    max_model_len: int | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    meta: ModelMeta | UnsetType = UNSET


class ModelList(Struct):
    data: list[ModelEntry]
    object: Literal["list"] = "list"


class Tokens(Struct):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Text(Struct):
    prompt: str


def usage(parts: list[EngineUsage], *, n_output: int | None = None) -> Usage:
    """Usage over the prompts of one HTTP request."""
    n_prompt = sum(part.n_prompt for part in parts)
    n_output = sum(part.n_output for part in parts) if n_output is None else n_output
    return Usage(n_prompt, n_output, n_prompt + n_output, PromptDetails(sum(part.n_cached for part in parts)))
