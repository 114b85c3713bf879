"""ModelRunner: a loaded model with its KV cache, that turns step plans into tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import metadata

import torch
from msgspec import structs
from torch import Tensor

from engine.config import EngineConfig
from engine.kv.groups import KVGroup
from engine.kv.storage import GroupStorage, HostStorage, JoinedStorage, KVStorage, StateStorage, Storage
from engine.models import registry
from engine.models.operators import Operators
from engine.quant import on_load
from engine.runner import threads
from engine.runner.graphs import RecordedStep, Unrecordable
from engine.runner.inputs import StepBuffers
from engine.runner.needs import PROMPT_ROWS
from engine.runner.prediction import predict, weigh
from engine.runner.steps import EagerStep, Step
from engine.sample.logprobs import token_logprobs
from engine.sample.sampler import Sampler
from engine.types import Entry, Moves, Sampled, StepPlan, StepResult, TokenLogprob
from engine.weights.checkpoint import Checkpoint
from engine.weights.config import KVShape
from engine.weights.loader import fill
from kernels.cpu import launch

log = logging.getLogger(__name__)


class ModelRunner:
    def __init__(
        self,
        config: EngineConfig,
        checkpoint: Checkpoint,
        progress: Callable[[int, int], None] | None = None,
        *,
        n_vocab: int | None = None,
        promised_bytes: int = 0,
    ) -> None:
        """Fit the cache, build the model, fill it. progress(done, total) counts bytes of weights.

        n_vocab: ids the tokenizer knows; rows of the output matrix past them are padding and never drawn. promised_bytes: what
        other models of this process may yet take of the memory that is free. Raises ConfigError for settings that cannot be had
        here, ModelLoadError, KernelMissing.
        """
        checkpoint = on_load.opened(checkpoint, config, keeps=True)
        self.model_config = model = checkpoint.config
        self.n_params = sum(math.prod(checkpoint.shape(name)) for name in checkpoint.names())
        # Its tokenizer is there already, in what is no longer free.
        predicted = predict(config, weigh(checkpoint, config), promised=promised_bytes, has_text=n_vocab is not None)
        self.device, self.dtype, self.kv_dtype = predicted.device, predicted.dtype, predicted.kv_dtype
        self.weights_bytes = predicted.weights_bytes
        self.digest = checkpoint.digest
        self.budget = predicted.budget
        self.config = config = structs.replace(
            config, max_num_seqs=self.budget.max_num_seqs, max_num_batched_tokens=self.budget.max_num_batched_tokens
        )
        """With the limits of a step that are in force."""
        self.block_size = self.budget.block_size
        self.kv_groups = self.budget.groups
        self.max_model_len = self.budget.max_model_len
        self.kv_bytes = self.budget.n_bytes
        threads.use(config.threads)
        ops = Operators(self.device, self.dtype, self.kv_dtype, exact=config.kernel_precision == "exact")
        self.model = registry.build(model, ops, self.max_model_len)
        fill(
            self.model,
            checkpoint,
            quantization=config.quantization,
            dtype=self.dtype,
            device=self.device.type,
            progress=progress,
        )
        if self.device.type == "cpu" and not ops.native:
            _warn_of_plain_torch(*_explained(ops))
        self.kv = GroupStorage({group: self._storage(group) for group in self.kv_groups}, model.kv_sources)
        n_slots = [group.n_host_blocks for group in self.kv_groups]
        self.host = HostStorage(self.kv, n_slots) if any(n_slots) else None
        self.sampler = Sampler(min(n_vocab or model.vocab_size, model.vocab_size), self.device.type)
        n_columns = -(-self.max_model_len // self.block_size)
        sizes = config.token_budget, config.max_num_seqs, n_columns, self.block_size
        buffers = StepBuffers(self.kv_groups, *sizes, self.device)
        self.eager = EagerStep(self.model, self.kv, buffers)
        self.recorded = None
        if not ops.native:
            threads.compute_with_torch(self)
        else:
            threads.leave_to_native_operators()
            self.recorded = None if config.enforce_eager or self.model.uses_torch else self._recorded(buffers)

    def _storage(self, group: KVGroup) -> Storage:
        model = self.model_config
        if group.recurrent:
            return StateStorage(len(group.layers), group.n_blocks, model.recurrent.state_shapes, self.device)
        by_shape: dict[KVShape, list[int]] = {}
        for i, layer in enumerate(group.layers):
            by_shape.setdefault(model.kv_shape(layer), []).append(i)

        def of_shape(shape: KVShape) -> KVStorage:
            sizes = len(by_shape[shape]), group.n_blocks, self.block_size
            return KVStorage(*sizes, shape, self.kv_dtype, self.device)

        if len(by_shape) == 1:
            return of_shape(*by_shape)
        return JoinedStorage({tuple(layers): of_shape(shape) for shape, layers in by_shape.items()})

    def _recorded(self, buffers: StepBuffers) -> RecordedStep | None:
        try:
            return RecordedStep(self.model, self.kv, buffers)
        except Unrecordable as error:
            log.warning("Each step calls its operators one by one, which takes longer: %s", error)
            return None

    @property
    def kv_extras(self) -> dict[str, str | int]:
        """What the KV depends on besides tokens, to the last bit."""
        dynamic = any(rope.scaling in ("dynamic", "longrope") for rope in self.model_config.distinct_ropes)
        return {
            "weights": self.digest,
            "device": self.device.type,
            "dtype": str(self.dtype),
            "kv_dtype": str(self.kv_dtype),
            "layout": self.kv.layout,
            "block_size": self.block_size,
            "precision": self.config.kernel_precision,
            "quantization": on_load.made_of(self.config.quantization),
            "operators": "reference" if launch.missing is not None else launch.native.level(),
            "pagewell": metadata.version("pagewell"),
            "rope_window": self.max_model_len if dynamic else 0,
            "torch": f"{torch.__version__}, transformers {metadata.version('transformers')}" if self.model.uses_torch else "",
        }

    @torch.inference_mode()
    def move(self, moves: Sequence[Moves]) -> None:
        """Copy blocks of each group between the cache and host memory, then within the cache; done when it returns."""
        if self.host is not None:
            self.host.move(moves)
        self.kv.copy(moves)

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        """Compute a plan's tokens and draw from the last row of each entry that samples. Raises BrokenLogits."""
        step: Step = self.recorded if self.recorded is not None and self.recorded.holds(plan) else self.eager
        size = step.prepare(plan)
        hidden = step.forward(size)
        seqs = [entry.seq for entry in plan.entries if entry.samples]
        tokens = iter(self.sampler.sample(step.logits(size), seqs) if seqs else ())
        sampled, row = [], 0
        for entry in plan.entries:
            row += entry.n_query
            prompt_logprobs = None
            if entry.seq.prompt_logprobs is not None:
                prompt_logprobs = self._prompt_logprobs(entry, hidden[row - entry.n_logits : row])
            token_id, logprob = next(tokens) if entry.samples else (None, None)
            token_ids = () if token_id is None else (token_id,)
            sampled.append(Sampled(token_ids, None if logprob is None else (logprob,), prompt_logprobs))
        return StepResult(tuple(sampled))

    def _prompt_logprobs(self, entry: Entry, hidden: Tensor) -> tuple[TokenLogprob, ...]:
        """Of the prompt tokens that come after the entry's last n_logits rows, whose hidden states are given."""
        seq = entry.seq
        first = entry.start + entry.n_query - entry.n_logits + 1
        token_ids = seq.token_ids[first : min(first + entry.n_logits, seq.n_prompt)]
        n_top = seq.request.params.prompt_logprobs or 0
        result: list[TokenLogprob] = []
        for row in range(0, len(token_ids), PROMPT_ROWS):
            ids = token_ids[row : row + PROMPT_ROWS]
            logits = self.model.logits(hidden[row : row + len(ids)])[:, : self.sampler.n_vocab]
            result += token_logprobs(logits, ids, [n_top] * len(ids))
            del logits  # or the next rows' would be made beside them
        return tuple(result)


def _explained(ops: Operators) -> tuple[str, str, str]:
    """(operators that run in plain torch, why, what helps)"""
    if launch.missing is not None:
        return ", ".join(ops.plain), launch.missing, launch.remedy
    # Of each operator's faster implementations the last one can do most.
    none = ("cpp: there are none of them yet",)
    reasons = [reason.partition(": ")[2] for of_one in ops.plain.values() for reason in (of_one or none)[-1:]]
    remedy = "Leave --dtype at auto." if ops.dtype != torch.float32 else "Another model runs faster here."
    return ", ".join(ops.plain), "; ".join(dict.fromkeys(reasons)), remedy


@cache
def _warn_of_plain_torch(ops: str, reasons: str, remedy: str) -> None:
    """Once in a process, for a model may be loaded again."""
    log.warning("Plain torch computes %s, many times slower than native operators: %s. %s", ops, reasons, remedy)
