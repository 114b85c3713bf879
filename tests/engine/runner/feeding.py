"""Feed prompts through a runner by hand, in any cut."""

from __future__ import annotations

import random
from collections.abc import Iterable

import torch

from engine.runner.runner import ModelRunner
from engine.types import Entry, Sequence, StepPlan
from tests.engine.runner.sequences import sequence


def placed(runner: ModelRunner, seqs: list[Sequence], n_more: int = 0, seed: int = 0) -> list[Sequence]:
    """Give sequences blocks for their tokens and n_more, scattered over a cache that holds NaN everywhere, if only as scales."""
    for storage in runner.kv.storages:
        for plane in storage.planes:
            plane.fill_(torch.nan if plane.is_floating_point() else -128)
    for seq in seqs:
        seq.tables = []
    for group in runner.kv_groups:
        free = random.Random(seed).sample(range(group.n_blocks), group.n_blocks)
        for seq in seqs:
            n = 1 if group.recurrent else -(-(len(seq.token_ids) + n_more) // runner.block_size)
            seq.tables.append([free.pop() for _ in range(n)])
    return seqs


def entry(seq: Sequence, n_query: int, *, n_logits: int | None = None) -> Entry:
    """The next n_query tokens, the last of which draws if it is the sequence's last."""
    samples = seq.n_computed + n_query == len(seq.token_ids)
    return Entry(seq, seq.n_computed, n_query, int(samples) if n_logits is None else n_logits, samples, seq.generation)


def steps(seqs: list[Sequence], *, most: int, seed: int = 0, all_logits: bool = False) -> Iterable[StepPlan]:
    """Plans that compute all tokens of the sequences in ragged batches, chunks of 1 to `most` tokens, some idle at times."""
    chance = random.Random(seed)
    while pending := [seq for seq in seqs if seq.n_computed < len(seq.token_ids)]:
        chosen = [seq for seq in pending if chance.random() < 0.7] or pending
        entries = []
        for seq in chance.sample(chosen, len(chosen)):
            n = min(chance.randint(1, most), len(seq.token_ids) - seq.n_computed)
            entries.append(entry(seq, n, n_logits=n if all_logits else None))
        yield StepPlan(tuple(entries), ())
        for planned in entries:
            planned.seq.n_computed += planned.n_query


def logits_of(runner: ModelRunner, prompts: list[list[int]], *, most: int) -> list[torch.Tensor]:
    """Logits of every position of each prompt, float32 [tokens, vocabulary], computed in chunks of at most `most`."""
    seqs = placed(runner, [sequence(list(prompt)) for prompt in prompts])
    parts: dict[Sequence, list[torch.Tensor]] = {seq: [] for seq in seqs}
    with torch.inference_mode():
        for plan in steps(seqs, most=most, all_logits=True):
            step = runner.recorded if runner.recorded is not None and runner.recorded.holds(plan) else runner.eager
            rows = runner.model.logits(step.forward(step.prepare(plan)))
            for planned, part in zip(plan.entries, rows.split([e.n_query for e in plan.entries]), strict=True):
                parts[planned.seq].append(part)
    return [torch.cat(parts[seq]) for seq in seqs]


def answer(runner: ModelRunner, seqs: list[Sequence], n_tokens: int, *, most: int) -> None:
    """Prefill in chunks, then decode until each sequence has n_tokens of output, in ragged batches of both."""
    for plan in steps(seqs, most=most):
        for planned, sampled in zip(plan.entries, runner.execute(plan).sampled, strict=True):
            if planned.seq.n_output < n_tokens:
                planned.seq.token_ids += sampled.token_ids
