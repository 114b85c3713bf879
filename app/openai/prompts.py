"""From messages or texts to token ids. Runs on a worker thread: templates and long texts would hold up the event loop."""

from __future__ import annotations

import anyio

from app.openai.schemas import ChatRequest, CompletionRequest, TokenizeRequest
from engine.admission import check_length
from engine.async_engine import AsyncEngine
from engine.errors import InvalidRequest, TemplateError
from engine.text.messages import all_text
from engine.text.template import is_prefill
from engine.text.tokenizer import Tokenizer

MAX_PROMPTS = 1024
_OWN_VARIABLES = frozenset({"messages", "tools", "add_generation_prompt", "continue_final"})
"""What the request itself decides; chat_template_kwargs cannot overrule it."""


async def chat_prompt(engine: AsyncEngine, request: ChatRequest | TokenizeRequest) -> list[int]:
    """Token ids of the messages through the model's chat template. Raises InvalidRequest, TemplateError, PromptTooLong."""
    messages = request.messages
    if not messages:
        raise InvalidRequest("messages", "`messages` must hold at least one message.")
    template = engine.template
    if template is None:
        raise InvalidRequest("messages", "This model's chat template cannot be read.", "Use /v1/completions.")
    # With tool_choice "none" the model must not call, and one that knows no tools cannot.
    forbidden = isinstance(request, ChatRequest) and request.tool_choice == "none"
    # An assistant's message at the end is the beginning of the answer, not a finished turn.
    continues = is_prefill(messages) if request.continue_final_message is None else request.continue_final_message
    variables = {name: value for name, value in (request.chat_template_kwargs or {}).items() if name not in _OWN_VARIABLES}

    def render() -> list[int]:
        try:
            text = template.render(
                messages,
                tools=None if forbidden else request.tools,
                add_generation_prompt=request.add_generation_prompt is not False,
                continue_final=continues,
                **variables,
            )
        except TemplateError:
            # Texts over the template's limits are the client's fault. Not checked before: a template may leave texts out.
            check_length(all_text(messages), engine.tokenizer, engine.info.max_model_len)
            raise
        if isinstance(request, ChatRequest):
            check_length(text, engine.tokenizer, engine.info.max_model_len)
        return engine.tokenizer.encode(text, add_special=False)

    return await anyio.to_thread.run_sync(render)


async def completion_prompts(engine: AsyncEngine, request: CompletionRequest) -> list[list[int]]:
    """Token ids of each prompt of the request; with `suffix` in the model's fill-in-the-middle form."""
    prompts = _split(request.prompt)
    add_special = request.add_special_tokens is not False

    def build() -> list[list[int]]:
        for text in (*prompts, request.suffix):
            if isinstance(text, str):
                check_length(text, engine.tokenizer, engine.info.max_model_len)
        if request.suffix:
            return [_fill_in(engine.tokenizer, prompt, request.suffix) for prompt in prompts]
        return [p if isinstance(p, list) else _encode(engine.tokenizer, p, add_special) for p in prompts]

    return await anyio.to_thread.run_sync(build)


async def text_or_chat(engine: AsyncEngine, request: TokenizeRequest) -> list[int]:
    """Token ids of messages, or of a raw text, in which special tokens may be written out."""
    if request.messages is not None:
        return await chat_prompt(engine, request)
    text = request.prompt if request.prompt is not None else request.content
    if text is None:
        raise InvalidRequest("prompt", "`prompt` or `messages` is missing.")
    return await anyio.to_thread.run_sync(_encode, engine.tokenizer, text, request.add_special_tokens is not False)


def _encode(tokenizer: Tokenizer, text: str, add_special: bool) -> list[int]:
    """An empty text is the model's own beginning, so that something precedes the first token."""
    token_ids = tokenizer.encode(text, add_special=add_special)
    if not token_ids and add_special:
        return [tokenizer.bos_id if tokenizer.bos_id is not None else min(tokenizer.end_ids)]
    return token_ids


def _split(prompt: str | list[str | int | list[int]] | None) -> list[str | list[int]]:
    """[text or token ids, ...]: a bare list of numbers is one prompt."""
    if prompt is None:
        raise InvalidRequest("prompt", "`prompt` is missing.")
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("prompt", "`prompt` must not be an empty list.")
    numbers = [item for item in prompt if isinstance(item, int)]
    if numbers and len(numbers) < len(prompt):
        raise InvalidRequest("prompt", "`prompt` must be texts or lists of token ids, not numbers beside them.")
    if not numbers and len(prompt) > MAX_PROMPTS:
        raise InvalidRequest("prompt", f"`prompt` has {len(prompt)} prompts; one request may bring {MAX_PROMPTS}.")
    return [numbers] if numbers else [item for item in prompt if not isinstance(item, int)]


def _fill_in(tokenizer: Tokenizer, prompt: str | list[int], suffix: str) -> list[int]:
    """Prefix, suffix, middle: the order in which every family with these tokens was trained."""
    fim = tokenizer.fim
    if fim is None:
        raise InvalidRequest("suffix", "This model has no tokens for filling in the middle.", "Leave out `suffix`.")
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt", "With `suffix`, `prompt` must be a text.")
    bos = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    before, after = (tokenizer.encode(text, add_special=False, parse_special=False) for text in (prompt, suffix))
    return [*bos, fim.prefix, *before, fim.suffix, *after, fim.middle]
