"""What clients send to the OpenAI-shaped routes. Unknown fields are ignored; every number has a range."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Penalty = Annotated[float, Meta(ge=-2, le=2)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TopCount = Annotated[int, Meta(ge=0, le=20)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class Sampling(msgspec.Struct, kw_only=True):
    """Fields that chat and text completions share: OpenAI's, and vLLM's additions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Positive | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """-1 draws a fresh one, as in llama.cpp."""
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Answers drawn, of which the n likeliest come back."""
    use_beam_search: bool | None = None
    beam_width: Annotated[int, Meta(ge=1, le=128)] | None = None
    """Default: best_of, else n."""
    length_penalty: float | None = None
    early_stopping: bool | None = None
    prompt_logprobs: TopCount | None = None
    cache_salt: str | None = None
    """Requests share cached prefixes only with requests of the same salt."""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    """Lower runs earlier."""
    num_ctx: Positive | None = None
    """Caps the window for this request; never reloads the model."""

    # Recognised so that they are refused, never silently left unenforced (see checks.py).
    response_format: Any = None
    structured_outputs: Any = None
    structural_tag: Any = None
    grammar: Any = None
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    format: Any = None
    """Ollama's: "json", or a schema."""
    allowed_token_ids: Any = None
    bad_words: Any = None
    logits_processors: Any = None
    truncate_prompt_tokens: Any = None


class ChatRequest(Sampling, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: TopCount | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[dict[str, Any]] | None = None
    """The old name of tools."""
    function_call: str | dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: Any = None
    """Refused unless it asks for text only."""

    # A Responses-shaped body sent here (see conversion.py).
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: Positive | None = None
    text: Any = None


class CompletionRequest(Sampling, kw_only=True):
    """POST /v1/completions. `prompt` is a text, token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]] | None = None
    suffix: str | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 is for `echo`: only the prompt comes back."""
    logprobs: TopCount | None = None
    echo: bool | None = None
    add_special_tokens: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize: a text (`prompt`, or llama.cpp's `content`), or messages through the chat template."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    tokens: list[TokenId]
    model: str | None = None
