"""Perplexity of a text: how much a model's arithmetic, or the format of its KV cache, costs in quality.

In windows of a fixed number of tokens that begin with the tokenizer's first token, the second half of each counts, as in
llama.cpp's llama-perplexity, so that its figures on the same text can stand beside these.
"""

from __future__ import annotations

import math
import statistics
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ConfigError
from engine.llm import LLM, SamplingParams

TEXT = Path(__file__).parent / "texts" / "prose.txt"
WINDOW = 512
EXACT = {"kernel_precision": "exact", "kv_cache_dtype": "float32"}
"""What others are compared with."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    value: float
    n_tokens: int
    """Tokens whose probabilities were counted."""
    log_probabilities: tuple[float, ...]
    kv_token_bytes: int
    """What keys and values of a token take, in all layers."""


def windows(token_ids: list[int], first: int | None, size: int = WINDOW) -> list[list[int]]:
    """Whole windows of a text, each beginning with `first` in place of its own first token, if there is one."""
    cut = [token_ids[start : start + size] for start in range(0, len(token_ids) - size + 1, size)]
    return [window if first is None else [first, *window[1:]] for window in cut]


def measure(model: Path, text: str, on_window: Callable[[], None] = lambda: None, **knobs: object) -> Perplexity:
    """Of a text under a model loaded with EngineConfig's `knobs`. Raises ConfigError for a text shorter than one window."""
    llm = LLM(model, progress=False, max_model_len=WINDOW + 16, max_num_seqs=1, enable_prefix_caching=False, **knobs)
    with_first, without = llm.tokenizer.encode("x"), llm.tokenizer.encode("x", add_special=False)
    first = with_first[0] if len(with_first) > len(without) else None
    token_ids = llm.tokenizer.encode(text)
    asked = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
    values: list[float] = []
    for window in windows(token_ids, first):
        [output] = llm.generate([window], asked)
        if output.prompt_logprobs is None:
            raise RuntimeError(f"A window was not computed: {output.error}")
        values += [entry.logprob for entry in output.prompt_logprobs[WINDOW // 2 + 1 :] if entry is not None]
        on_window()
    if not values:
        raise ConfigError(f"The text has {len(token_ids)} tokens, fewer than a window of {WINDOW}.", "Give a longer one.")
    kv = llm.core.kv
    kv_token_bytes = sum(group.block_bytes for group in kv.groups if not group.recurrent) // kv.block_size
    return Perplexity(math.exp(-sum(values) / len(values)), len(values), tuple(values), kv_token_bytes)


def of_llama_cpp(program: Path, model: Path, text: Path, threads: int) -> float:
    """What llama-perplexity prints for the same windows. Raises ConfigError where it fails."""
    command = [str(program), "-m", str(model), "-f", str(text), "-c", str(WINDOW), "-b", str(WINDOW), "-t", str(threads)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise ConfigError(f"{program} cannot be run: {error.strerror}.", "Name llama.cpp's llama-perplexity.") from error
    for line in (result.stdout + result.stderr).splitlines():
        if "Final estimate: PPL = " in line:
            return float(line.split("PPL = ")[1].split()[0])
    raise ConfigError(f"{program} gave no perplexity (exit status {result.returncode}).", "Run it by hand to see why.")


def standard_error(a: Perplexity, b: Perplexity) -> float:
    """Of the logarithm of b's value over a's, which for small differences is their relative difference.

    The two are paired token by token, so what is hard to foretell for both does not count. Tokens of a window are taken as
    independent of each other.
    """
    differences = [x - y for x, y in zip(a.log_probabilities, b.log_probabilities, strict=True)]
    return statistics.stdev(differences) / math.sqrt(len(differences))


def spread(a: Perplexity, b: Perplexity) -> float:
    """Root mean square of the differences of the tokens' log probabilities."""
    pairs = zip(a.log_probabilities, b.log_probabilities, strict=True)
    return math.sqrt(sum((x - y) ** 2 for x, y in pairs) / a.n_tokens)
