"""What number formats of weights cost and bring: their error against the dense weights, their size, the speed of an answer."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.llm import LLM, SamplingParams
from engine.models.parts import Matrix
from engine.quant import on_load
from engine.quant.methods import section
from engine.types import Request
from engine.weights.checkpoint import Checkpoint
from engine.weights.loader import open_checkpoint
from kernels.ops import DENSE
from kernels.reference import dequant

N_PROMPT = 16
_TILE_VALUES = 1 << 22


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint, or the dense one quantised on load."""

    path: Path
    scheme: str = "auto"
    """Value of --quantization."""

    @property
    def name(self) -> str:
        return self.path.name if self.scheme == "auto" else f"--quantization {self.scheme}"


@dataclass(slots=True)
class Row:
    """Of one candidate."""

    name: str
    format: str
    """What wrote it: gguf, or quant_method of its configuration."""
    types: str
    """Weight types of its quantised matrices with the group of scales, the one of most bytes first."""
    error: float
    """Of all quantised matrices together: length of the difference from the dense weights over the length of these."""
    bits: float
    """Of the quantised matrices, for each weight, as they are loaded."""
    device: str = ""
    operator: str = ""
    """The implementation of quant_linear that most bytes go through."""
    decode_tok_s: list[float] = field(default_factory=list)
    """Of one answer, one value for each round."""

    def result(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"decode_tok_s": statistics.median(self.decode_tok_s), "rounds": values["decode_tok_s"]}


def compared(candidate: Candidate, dense: Checkpoint) -> Row:
    """Its weights against the dense ones. Raises ConfigError for the checkpoint of another model, ModelLoadError."""
    checkpoint = open_checkpoint(candidate.path)
    written = checkpoint.kind if checkpoint.kind == "gguf" else _method(checkpoint)
    if candidate.scheme != "auto":
        checkpoint, written = on_load.QuantizedCheckpoint(checkpoint, candidate.scheme), "on load"
    n_bytes: Counter[str] = Counter()
    squares = differences = n_values = 0.0
    for name in (name for name in checkpoint.names() if len(checkpoint.shape(name)) == 2):
        if checkpoint.qtype(name) in DENSE:
            continue
        if name not in dense.names() or dense.shape(name) != checkpoint.shape(name):
            raise ConfigError(
                f"{candidate.path} is no quantisation of {dense.path}: {name} is not there, or of another shape.",
                "Name checkpoints of one model.",
            )
        weight, plain = checkpoint.weight(name), dense.weight(name)
        kind = weight.qtype if weight.scales is None or weight.group == weight.shape[1] else f"{weight.qtype} g{weight.group}"
        n_bytes[kind] += weight.n_bytes
        n_values += math.prod(weight.shape)
        values = dequant.dense(weight)
        step = max(1, _TILE_VALUES // weight.shape[1])
        for start in range(0, weight.shape[0], step):
            rows = slice(start, start + step)
            expected = dequant.dense(plain.map(lambda tensor, rows=rows: tensor[rows]))
            squares += expected.square().sum().item()
            differences += (values[rows] - expected).square().sum().item()
        checkpoint.give_back(name)
        dense.give_back(name)
    types = ", ".join(kind for kind, _ in n_bytes.most_common()) or "dense"
    error = math.sqrt(differences / squares) if squares else 0.0
    return Row(candidate.name, written, types, error, 8 * n_bytes.total() / n_values if n_values else 0.0)


def speeds(pairs: Sequence[tuple[Candidate, Row]], n_decodes: int, rounds: int, say: Callable[[str], None], **knobs: Any) -> None:
    """Each round loads every candidate anew, another one first, and adds what it measured to its row. Raises ModelLoadError."""
    for index in range(rounds):
        first = index % len(pairs)
        for candidate, row in [*pairs[first:], *pairs[:first]]:
            llm = LLM(
                candidate.path,
                progress=False,
                quantization=candidate.scheme,
                max_model_len=N_PROMPT + n_decodes + 1,
                max_num_seqs=1,
                swap_space=0,
                **knobs,
            )
            row.device, row.operator = llm.core.runner.device.type, _operator(llm)
            row.decode_tok_s.append(_decode_rate(llm, n_decodes))
            say(f"round {index + 1}, {row.name}: decode {row.decode_tok_s[-1]:.1f} tok/s")
            del llm


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Markdown, of results of rows."""
    lines = [
        "| checkpoint | written by | weights | bits | error | device | operator | decode tok/s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        numbers = f"{row['bits']:.2f} | {row['error']:.2%}" if row["bits"] else " | "
        rest = f"{row['device']} | `{row['operator']}` | {row['decode_tok_s']:.1f}"
        lines.append(f"| {row['name']} | {row['format']} | {row['types']} | {numbers} | {rest} |")
    return "\n".join(lines)


def _method(checkpoint: Checkpoint) -> str:
    config = section(checkpoint.metadata, str(checkpoint.path))
    if config is None:
        return "dense"
    method, form = config.get("quant_method", "modelopt"), config.get("format", None)
    return f"{method}, {form}" if form else method


def _operator(llm: LLM) -> str:
    n_bytes: Counter[str] = Counter()
    for slot in llm.core.runner.model.parameters().values():
        if isinstance(slot, Matrix) and slot.impl.op == "quant_linear":
            n_bytes[slot.impl.source] += slot.weight.n_bytes
    return n_bytes.most_common(1)[0][0]


def _decode_rate(llm: LLM, n_decodes: int) -> float:
    """Tokens a second of one answer behind its first token. The first answer of a model warms it up."""
    rng = random.Random(0)
    prompt = [rng.randrange(llm.info.n_vocab) for _ in range(N_PROMPT)]
    llm.generate([prompt], SamplingParams(temperature=0, ignore_eos=True, max_tokens=4))
    core = llm.core
    n_before = core.counters.output_tokens
    core.add(Request("bench", prompt, SamplingParams(temperature=0, ignore_eos=True, max_tokens=n_decodes + 1)))
    while core.counters.output_tokens == n_before:
        core.step()
    began = time.perf_counter()
    while core.scheduler.has_work:
        core.step()
    return n_decodes / (time.perf_counter() - began)
