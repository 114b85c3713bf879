"""Plans as tensors, in buffers that steps of all sizes write one after the other."""

from __future__ import annotations

import random

import pytest
import torch

from engine.kv.groups import KVGroup
from engine.runner.inputs import StepBuffers, StepSize
from engine.types import Entry, StepInputs, StepPlan
from tests.engine.runner.sequences import sequence

ONE = (KVGroup(n_blocks=1),)
CPU = torch.device("cpu")


def plan(*entries: Entry) -> StepPlan:
    return StepPlan(entries, ())


@pytest.fixture
def buffers() -> StepBuffers:
    return StepBuffers(ONE, 16, 4, 5, 4, CPU)


def test_a_ragged_plan_becomes_these_tensors(buffers: StepBuffers) -> None:
    """A chunk in mid-prompt, a decode, and the end of a prompt; block size 4."""
    chunk, decode, end = sequence(list(range(10, 30))), sequence(list(range(50, 59)), n_output=1), sequence([70, 71, 72, 73])
    chunk.tables, decode.tables, end.tables = [[9, 3, 5, 1, 0]], [[2, 8, 4]], [[7]]
    size = buffers.write(plan(Entry(chunk, 3, 6, 0, False, 0), Entry(decode, 8, 1, 1, True, 0), Entry(end, 0, 4, 3, True, 0)))
    assert size == StepSize(11, 3, 2)
    (inputs,) = buffers.inputs(size)
    assert inputs.token_ids.tolist() == [13, 14, 15, 16, 17, 18, 58, 70, 71, 72, 73]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 7, 8, 8, 0, 1, 2, 3]
    assert inputs.slots.tolist() == [39, 12, 13, 14, 15, 20, 16, 28, 29, 30, 31]
    assert inputs.query_starts.tolist() == [0, 6, 7, 11]
    assert inputs.context_lens.tolist() == [9, 9, 4]
    assert inputs.block_tables.tolist() == [[9, 3, 5, -1, -1], [2, 8, 4, -1, -1], [7, -1, -1, -1, -1]]
    assert inputs.logit_rows.tolist() == [6, 10]
    for tensor in (inputs.token_ids, inputs.positions, inputs.slots, inputs.logit_rows):
        assert tensor.dtype == torch.int64
    for tensor in (inputs.query_starts, inputs.context_lens, inputs.block_tables):
        assert tensor.dtype == torch.int32


def test_a_plan_in_mid_prompt_draws_nothing(buffers: StepBuffers) -> None:
    seq = sequence(list(range(8)))
    seq.tables = [[0]]
    (inputs,) = buffers.inputs(buffers.write(plan(Entry(seq, 0, 4, 0, False, 0))))
    assert inputs.logit_rows.shape == (0,) and inputs.logit_rows.dtype == torch.int64


def test_larger_plans_are_not_held(buffers: StepBuffers) -> None:
    seqs = [sequence(list(range(20))) for _ in range(5)]
    for seq in seqs:
        seq.tables = [[1, 2, 3, 4, 0]]
    assert buffers.hold(plan(*(Entry(seq, 0, 4, 0, False, 0) for seq in seqs[:4])))
    for large in (plan(*(Entry(seq, 0, 1, 0, False, 0) for seq in seqs)), plan(Entry(seqs[0], 0, 17, 0, False, 0))):
        assert not buffers.hold(large)
        assert buffers.enlarged(large).hold(large)


def test_what_earlier_steps_wrote_never_shows() -> None:
    """Random sequences come and go, grow, and change a block, which takes a new list."""
    chance, buffers, seqs = random.Random(5), StepBuffers(ONE, 40, 6, 8, 4, CPU), []
    for _ in range(300):
        seqs = [seq for seq in seqs if chance.random() < 0.9 and len(seq.token_ids) < 30]
        while len(seqs) < 6 and chance.random() < 0.7:
            seqs.append(sequence([chance.randrange(99) for _ in range(chance.randint(1, 5))]))
        entries = []
        for seq in chance.sample(seqs, len(seqs)):
            n_query = min(chance.choice((1, 1, 2, 5)), len(seq.token_ids) - seq.n_computed)
            seq.tables = seq.tables or [[]]
            while len(seq.tables[0]) * 4 < seq.n_computed + n_query:
                seq.tables[0].append(chance.randrange(1000))
            if chance.random() < 0.1:
                seq.tables[0] = [chance.randrange(1000) for _ in seq.tables[0]]
            entries.append(Entry(seq, seq.n_computed, n_query, 1, True, 0))
        if not entries:
            continue
        fresh = StepBuffers(ONE, 40, 6, 8, 4, CPU)
        (got,), (wanted,) = (each.inputs(each.write(plan(*entries))) for each in (buffers, fresh))
        for name in StepInputs.__dataclass_fields__:
            assert torch.equal(getattr(got, name), getattr(wanted, name)), name
        for entry in entries:
            entry.seq.n_computed += entry.n_query
            if entry.seq.n_computed == len(entry.seq.token_ids):
                entry.seq.token_ids.append(chance.randrange(99))
