"""From a step plan to tensors."""

from __future__ import annotations

from array import array

import torch

from engine.types import StepInputs, StepPlan


def prepare(plan: StepPlan, block_size: int, device: torch.device) -> StepInputs:
    """The tensors of a plan with at least one entry, whose sequences own blocks for all their scheduled tokens."""
    token_ids, positions, slots, logit_rows = array("q"), array("q"), array("q"), array("q")
    query_starts, context_lens, tables = array("i", [0]), array("i"), array("i")
    n_columns = max(_n_blocks(entry.start + entry.n_query, block_size) for entry in plan.entries)
    for entry in plan.entries:
        seq, end = entry.seq, entry.start + entry.n_query
        n_blocks = _n_blocks(end, block_size)
        token_ids.fromlist(seq.token_ids[entry.start : end])
        positions.extend(range(entry.start, end))
        slots.extend(seq.block_ids[p // block_size] * block_size + p % block_size for p in range(entry.start, end))
        tables.fromlist(seq.block_ids[:n_blocks])
        tables.fromlist([-1] * (n_columns - n_blocks))
        context_lens.append(end)
        query_starts.append(len(token_ids))
        logit_rows.extend(range(len(token_ids) - entry.n_logits, len(token_ids)))
    return StepInputs(
        token_ids=_tensor(token_ids, device),
        positions=_tensor(positions, device),
        query_starts=_tensor(query_starts, device),
        context_lens=_tensor(context_lens, device),
        slots=_tensor(slots, device),
        block_tables=_tensor(tables, device).view(-1, n_columns),
        logit_rows=_tensor(logit_rows, device),
    )


def _n_blocks(n_tokens: int, block_size: int) -> int:
    return -(-n_tokens // block_size)


def _tensor(values: array[int], device: torch.device) -> torch.Tensor:
    """int64 or int32 [n], by the array's item type; on a CPU it shares the array's memory."""
    if not values:
        return torch.empty(0, dtype=torch.int64, device=device)
    return torch.frombuffer(values, dtype=torch.int64 if values.typecode == "q" else torch.int32).to(device)
