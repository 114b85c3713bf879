"""What a request must satisfy before it is queued; what can never run is refused here, with the numbers."""

from __future__ import annotations

import math

from engine.errors import InvalidRequest, PromptTooLong
from engine.kv.manager import KVManager
from engine.kv.memory import GroupMemory
from engine.text.tokenizer import Tokenizer
from engine.types import Request, SamplingParams

MAX_CHOICES = 128
MAX_LOGPROBS = 128


def check_params(params: SamplingParams, n_vocab: int) -> None:
    """Raise InvalidRequest naming the first field that is out of range."""
    _between("temperature", params.temperature, 0.0, 100.0)
    _between("top_p", params.top_p, 0.0, 1.0)
    if params.top_p == 0.0:
        raise InvalidRequest("top_p", "top_p must be above 0.", "Leave it out to keep every token.")
    _between("min_p", params.min_p, 0.0, 1.0)
    _between("top_k", params.top_k, -1, 2**31)
    _between("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _between("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _between("repetition_penalty", params.repetition_penalty, 0.01, 100.0)  # less would make logits infinite
    _between("n", params.n, 1, MAX_CHOICES)
    if params.best_of is not None:
        _between("best_of", params.best_of, params.n, MAX_CHOICES)
    if params.beam_width:
        _check_beam_search(params)
    _between("min_tokens", params.min_tokens, 0, 2**31)
    if params.max_tokens is not None:
        _between("max_tokens", params.max_tokens, 1, 2**31)
        if params.min_tokens > params.max_tokens:
            raise InvalidRequest(
                "min_tokens", f"min_tokens is {params.min_tokens}, above the {params.max_tokens} tokens that the answer may have."
            )
    if params.seed is not None:
        _between("seed", params.seed, -(2**63), 2**64 - 1)
    for name, count in (("logprobs", params.logprobs), ("prompt_logprobs", params.prompt_logprobs)):
        if count is not None:
            _between(name, count, 0, MAX_LOGPROBS)
    for token_id, bias in params.logit_bias.items():
        _token(f"logit_bias.{token_id}", token_id, n_vocab)
        _between(f"logit_bias.{token_id}", bias, -100.0, 100.0)
    for token_id in params.stop_token_ids:
        _token("stop_token_ids", token_id, n_vocab)
    if any(not stop for stop in params.stop):
        raise InvalidRequest("stop", "A stop string is empty.", "Leave it out.")


def _check_beam_search(params: SamplingParams) -> None:
    _between("beam_width", params.beam_width, params.n, MAX_CHOICES)
    _between("length_penalty", params.length_penalty, -10.0, 10.0)
    default = SamplingParams()
    for name in (
        *("best_of", "logprobs", "stop", "min_tokens", "logit_bias"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    ):
        if getattr(params, name) != getattr(default, name):
            raise InvalidRequest(name, f"{name} does not go with beam search.", f"Leave out {name}, or use_beam_search.")


def check_beams(request: Request, kv: KVManager, *, max_num_seqs: int, max_model_len: int) -> None:
    """Raise InvalidRequest for a beam search whose beams could not all run at once: they have to, step by step."""
    params, n_prompt = request.params, len(request.prompt_token_ids)
    width = params.beam_width
    if width > max_num_seqs:
        raise InvalidRequest("beam_width", f"beam_width is {width}, but at most {max_num_seqs} answers are computed together.")
    n_output = max_model_len - n_prompt
    n_output = min(n_output, params.max_tokens or n_output)
    most = min(_most_output(memory, kv, width, n_prompt) for memory in kv.memories)
    if n_output > most:
        raise InvalidRequest(
            "max_tokens",
            f"{width} beams of {n_output} tokens after a prompt of {n_prompt} do not fit into the KV cache.",
            f"Set max_tokens to at most {max(most, 0)}, or use fewer beams.",
        )


def _most_output(memory: GroupMemory, kv: KVManager, width: int, n_prompt: int) -> int:
    """Tokens that each of `width` beams may have, as far as one KV group goes."""
    n_blocks, size = len(memory.pool.blocks) - memory.headroom, kv.block_size
    unlimited = 2**31
    if memory.group.recurrent:
        return unlimited if width < n_blocks else 0
    if memory.group.window:  # one beam after the other may have to compute its window again, while the others hold theirs
        held = -(-memory.group.window // size) + 2
        if (width - 1) * held + memory.group.most_held(unlimited, kv.chunk, size) + 1 <= n_blocks:
            return unlimited
    shared = 0 if kv.has_states else n_prompt // size  # a beam that comes back computes on from the last state that was kept
    return ((n_blocks - shared) // width - 1) * size - (n_prompt - shared * size)  # one more while a shared one is copied


def check_prompt(prompt_token_ids: list[int], n_vocab: int, max_model_len: int) -> None:
    """Raise InvalidRequest for an empty prompt or an unknown token id, PromptTooLong when no token could follow."""
    if not prompt_token_ids:
        raise InvalidRequest("prompt", "The prompt is empty.", "Send at least one token.")
    low, high = min(prompt_token_ids), max(prompt_token_ids)
    _token("prompt", low, n_vocab)
    _token("prompt", high, n_vocab)
    if len(prompt_token_ids) >= max_model_len:
        raise PromptTooLong(len(prompt_token_ids), max_model_len)


def check_length(text: str, tokenizer: Tokenizer, max_model_len: int) -> None:
    """Raise PromptTooLong for a text that cannot fit however it is cut, before minutes go into tokenising it."""
    n_tokens = tokenizer.at_least(text)
    if n_tokens >= max_model_len:
        raise PromptTooLong(n_tokens, max_model_len, at_least=True)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequest(name, f"{name} is {value}, but it must lie between {low} and {high}.")


def _token(name: str, token_id: int, n_vocab: int) -> None:
    if not 0 <= token_id < n_vocab:
        raise InvalidRequest(name, f"{name}: token id {token_id} is not in the vocabulary of {n_vocab} tokens.")
