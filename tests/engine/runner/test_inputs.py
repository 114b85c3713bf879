from __future__ import annotations

import torch

from engine.runner.inputs import prepare
from engine.types import Entry, StepPlan
from tests.engine.runner.sequences import sequence


def test_a_ragged_plan_becomes_these_tensors() -> None:
    """A chunk in mid-prompt, a decode, and the end of a prompt whose last three rows are needed; block size 4."""
    chunk, decode, end = sequence(list(range(10, 30))), sequence(list(range(50, 59)), n_output=1), sequence([70, 71, 72, 73])
    chunk.block_ids, decode.block_ids, end.block_ids = [9, 3, 5, 1, 0], [2, 8, 4], [7]
    plan = StepPlan((Entry(chunk, 3, 6, 0, False, 0), Entry(decode, 8, 1, 1, True, 0), Entry(end, 0, 4, 3, True, 0)), (), ())
    inputs = prepare(plan, 4, torch.device("cpu"))
    assert inputs.token_ids.tolist() == [13, 14, 15, 16, 17, 18, 58, 70, 71, 72, 73]
    assert inputs.positions.tolist() == [3, 4, 5, 6, 7, 8, 8, 0, 1, 2, 3]
    assert inputs.slots.tolist() == [39, 12, 13, 14, 15, 20, 16, 28, 29, 30, 31]
    assert inputs.query_starts.tolist() == [0, 6, 7, 11]
    assert inputs.context_lens.tolist() == [9, 9, 4]
    assert inputs.block_tables.tolist() == [[9, 3, 5], [2, 8, 4], [7, -1, -1]]
    assert inputs.logit_rows.tolist() == [6, 8, 9, 10]
    for tensor in (inputs.token_ids, inputs.positions, inputs.slots, inputs.logit_rows):
        assert tensor.dtype == torch.int64
    for tensor in (inputs.query_starts, inputs.context_lens, inputs.block_tables):
        assert tensor.dtype == torch.int32


def test_a_plan_in_mid_prompt_needs_no_logits() -> None:
    seq = sequence(list(range(8)))
    seq.block_ids = [0]
    inputs = prepare(StepPlan((Entry(seq, 0, 4, 0, False, 0),), (), ()), 4, torch.device("cpu"))
    assert inputs.logit_rows.shape == (0,) and inputs.logit_rows.dtype == torch.int64
