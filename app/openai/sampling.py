"""From a request's fields to the engine's sampling parameters."""

from __future__ import annotations

from app.openai.schemas import ChatRequest, CompletionRequest, Sampling
from engine.errors import InvalidRequest
from engine.types import SamplingParams

_SMALLEST_TOP_P = 1e-6
"""top_p 0, which some clients send, keeps the likeliest token only."""


def chat_params(request: ChatRequest) -> SamplingParams:
    """Parameters of a chat request. Raises InvalidRequest."""
    params = _shared(request)
    params.max_tokens = request.max_completion_tokens or request.max_tokens
    wants_logprobs = request.logprobs if request.logprobs is not None else bool(request.top_logprobs)
    params.logprobs = (request.top_logprobs or 0) if wants_logprobs else None
    return params


def completion_params(request: CompletionRequest) -> SamplingParams:
    """Parameters of a text completion. Raises InvalidRequest."""
    params = _shared(request)
    params.max_tokens = request.max_tokens
    params.logprobs = request.logprobs
    if request.max_tokens == 0:
        if not request.echo:
            raise InvalidRequest("max_tokens", "At least 1 token must be asked for, unless `echo` is set.")
        params.max_tokens = 1  # the engine always draws one; it is not shown
    if request.echo and request.logprobs is not None:
        if request.stream:
            raise InvalidRequest("echo", "`echo` with `logprobs` comes only with the whole answer.", "Leave out `stream`.")
        params.prompt_logprobs = max(request.logprobs, request.prompt_logprobs or 0)
    return params


def _shared(request: Sampling) -> SamplingParams:
    default = SamplingParams()

    def given(name: str):
        value = getattr(request, name)
        return getattr(default, name) if value is None else value

    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return SamplingParams(
        min_tokens=given("min_tokens"),
        temperature=given("temperature"),
        top_p=max(given("top_p"), _SMALLEST_TOP_P),
        top_k=max(given("top_k"), 0),
        min_p=given("min_p"),
        presence_penalty=given("presence_penalty"),
        frequency_penalty=given("frequency_penalty"),
        repetition_penalty=given("repetition_penalty"),
        logit_bias=_logit_bias(request.logit_bias or {}),
        seed=None if request.seed == -1 else request.seed,
        stop=tuple(text for text in stop if text),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        include_stop_str_in_output=given("include_stop_str_in_output"),
        ignore_eos=given("ignore_eos"),
        skip_special_tokens=given("skip_special_tokens"),
        prompt_logprobs=request.prompt_logprobs,
        n=given("n"),
        best_of=None if request.use_beam_search else request.best_of,
        beam_width=(request.beam_width or request.best_of or given("n")) if request.use_beam_search else 0,
        length_penalty=given("length_penalty"),
        early_stopping=given("early_stopping"),
    )


def _logit_bias(by_text: dict[str, float]) -> dict[int, float]:
    try:
        return {int(token_id): bias for token_id, bias in by_text.items()}
    except ValueError as error:
        raise InvalidRequest("logit_bias", "`logit_bias` must map token ids to numbers.") from error
