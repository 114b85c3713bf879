"""One trial: open a checkpoint, fill it and answer with it, or hear a typed error with a remedy. Anything else is a fault."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig
from engine.errors import ConfigError, InvalidRequest, ModelLoadError, PagewellError, PromptTooLong
from engine.loading import Loaded, load_core
from engine.types import Event, Finished, FinishReason, Request, SamplingParams
from engine.weights.loader import open_checkpoint

CONFIG = EngineConfig(
    device="cpu", threads=1, max_num_seqs=2, max_num_batched_tokens=16, kv_cache_memory=1 << 20, swap_space=0,
    enable_prefix_caching=True, debug_checks=True,
)  # fmt: skip
"""A small cache, so that the address space that a trial may take is small too."""
RAN = "ran"
_TEXT = "hello world <|im_end|> é\U0001f600 </s>"
_MOST_STEPS = 40


class Fault(Exception):
    """A checkpoint was neither refused nor served as it should be."""


def attempt(path: Path) -> str:
    """RAN, or the name of the error that refused it. Raises Fault, and whatever should not have been raised."""
    try:
        loaded = load_core(path, CONFIG)
    except (ModelLoadError, ConfigError) as error:
        return _refused(error)
    if path.is_dir():
        _lies_within(path)
    try:
        ids = _tokenizes(loaded)
    except InvalidRequest as error:
        return _refused(error)
    return _answers(loaded, ids)


def _refused(error: PagewellError) -> str:
    if not error.message or not error.hint:
        raise Fault(f"{type(error).__name__} without a remedy: {error.message!r}")
    if len(error.message) > 2000 or not error.message.isprintable():
        raise Fault(f"{type(error).__name__} of {len(error.message)} characters, not fit to be shown")
    return type(error).__name__


def _lies_within(folder: Path) -> None:
    """Every tensor of a folder is within the file that it is mapped from; of a GGUF file a guard page sees to that."""
    checkpoint = open_checkpoint(folder)
    tensors = {
        name: checkpoint.weight(name).data if len(checkpoint.shape(name)) == 2 else checkpoint.vector(name)
        for name in checkpoint.names()
    }
    mapped = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]
    for name, data in tensors.items():
        if not data.nbytes or not checkpoint.is_stored(name, data):
            continue
        first, last = data.data_ptr(), data.data_ptr() + data.nbytes
        for span, _, offset, _, _, file in mapped:
            start, end = (int(part, 16) for part in span.split("-"))
            if start <= first < end and int(offset, 16) + last - start <= Path(file).stat().st_size:
                break
        else:
            raise Fault(f"{name} does not lie within a file of the model")


def _tokenizes(loaded: Loaded) -> list[int]:
    """Every way in which text goes through the tokenizer and the template."""
    tokenizer = loaded.tokenizer
    ids = tokenizer.encode(_TEXT)
    tokenizer.decode(ids)
    tokenizer.at_least(_TEXT)
    for token_id in (-1, 0, 1, loaded.info.n_vocab - 1, loaded.info.n_vocab, tokenizer.vocab_size - 1):
        assert isinstance(tokenizer.token_text(token_id), str)
        assert isinstance(tokenizer.pieces_with_special[token_id], bytes)
    if loaded.template is not None:
        try:
            loaded.template.render([{"role": "user", "content": "hello"}])
        except InvalidRequest as error:
            assert error.message
    return ids


def _answers(loaded: Loaded, ids: list[int]) -> str:
    events: list[Event] = []
    core = loaded.make_core(events.extend)
    n_vocab = loaded.info.n_vocab
    prompt = [i for i in ids if i < n_vocab][: max(1, min(20, loaded.info.max_model_len - 3))] or [0]
    params = SamplingParams(max_tokens=2, ignore_eos=True, logprobs=2, prompt_logprobs=1, repetition_penalty=1.1)
    try:
        core.add(Request("fuzz", prompt, params))
    except (InvalidRequest, PromptTooLong) as error:
        return type(error).__name__
    for _ in range(_MOST_STEPS):
        core.step()
        end = next((event for event in events if isinstance(event, Finished)), None)
        if end is not None:
            # A weight that is not a number makes logits that are none, which the client is told.
            if end.reason is FinishReason.ERROR and "no finite likeliest token" not in str(end.error):
                raise Fault(f"the answer ended with an error: {end.error}")
            return RAN
    raise Fault(f"no end after {_MOST_STEPS} steps")
