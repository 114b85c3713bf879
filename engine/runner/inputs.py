"""From a step plan to tensors."""

from __future__ import annotations

from array import array
from typing import NamedTuple

import torch
from torch import Tensor

from engine.types import StepInputs, StepPlan


class StepSize(NamedTuple):
    n_rows: int
    """Tokens."""
    n_seqs: int
    n_draws: int
    """Entries that sample."""


class StepBuffers:
    """The tensors of a step, as large as steps get, and written in place: a recorded step reads them where they lie."""

    def __init__(self, n_rows: int, n_seqs: int, n_columns: int, block_size: int, device: torch.device) -> None:
        """For steps of up to n_rows tokens in n_seqs sequences of n_columns blocks."""
        self.n_rows, self.n_seqs, self.n_columns = n_rows, n_seqs, n_columns
        self._block_size = block_size
        self._device = device
        rows, seqs = (n_rows,), (n_seqs,)
        self._inputs = StepInputs(
            token_ids=torch.zeros(rows, dtype=torch.int64),
            positions=torch.zeros(rows, dtype=torch.int64),
            query_starts=torch.zeros(n_seqs + 1, dtype=torch.int32),
            context_lens=torch.zeros(seqs, dtype=torch.int32),
            slots=torch.zeros(rows, dtype=torch.int64),
            block_tables=torch.full((n_seqs, n_columns), -1, dtype=torch.int32),
            logit_rows=torch.zeros(seqs, dtype=torch.int64),
        )
        self._token_ids, self._positions = _items(self._inputs.token_ids), _items(self._inputs.positions)
        self._query_starts, self._context_lens = _items(self._inputs.query_starts), _items(self._inputs.context_lens)
        self._slots, self._logit_rows = _items(self._inputs.slots), _items(self._inputs.logit_rows)
        self._tables = _items(self._inputs.block_tables)
        self._written: list[tuple[list[int] | None, int]] = [(None, 0)] * n_seqs
        """Of each row of the block tables: whose ids it holds, and how many."""

    def hold(self, plan: StepPlan) -> bool:
        """Whether the plan fits, whose sequences have no more blocks than the rows have columns."""
        return plan.n_tokens <= self.n_rows and len(plan.entries) <= self.n_seqs

    def enlarged(self, plan: StepPlan) -> StepBuffers:
        """Others, in which the plan fits."""
        return StepBuffers(plan.n_tokens, len(plan.entries), self.n_columns, self._block_size, self._device)

    def write(self, plan: StepPlan) -> StepSize:
        """Write a plan that fits, with at least one entry, whose sequences own blocks for all their scheduled tokens."""
        size, row, n_draws = self._block_size, 0, 0
        for i, entry in enumerate(plan.entries):
            seq, start, n_query = entry.seq, entry.start, entry.n_query
            end, block_ids = start + n_query, seq.block_ids
            if n_query == 1:
                self._token_ids[row] = seq.token_ids[start]
                self._positions[row] = start
                self._slots[row] = block_ids[start // size] * size + start % size
            else:
                rows, positions = slice(row, row + n_query), range(start, end)
                self._token_ids[rows] = array("q", seq.token_ids[start:end])
                self._positions[rows] = array("q", positions)
                self._slots[rows] = array("q", [block_ids[p // size] * size + p % size for p in positions])
            self._write_table(i, block_ids, -(-end // size))
            row += n_query
            self._context_lens[i] = end
            self._query_starts[i + 1] = row
            if entry.samples:
                self._logit_rows[n_draws] = row - 1
                n_draws += 1
        return StepSize(row, len(plan.entries), n_draws)

    def _write_table(self, i: int, block_ids: list[int], n_blocks: int) -> None:
        """Row i; of a list that it holds already only what was appended since."""
        held, n_held = self._written[i]
        first = n_held if held is block_ids else 0
        if first != n_blocks:
            at = i * self.n_columns
            if first < n_blocks:
                self._tables[at + first : at + n_blocks] = array("i", block_ids[first:n_blocks])
            if n_held > n_blocks:
                self._tables[at + n_blocks : at + n_held] = array("i", [-1]) * (n_held - n_blocks)
            self._written[i] = block_ids, n_blocks
        elif held is not block_ids:
            self._written[i] = block_ids, n_blocks

    def logit_rows(self, n_draws: int) -> Tensor:
        return self._inputs.logit_rows[:n_draws]

    def inputs(self, size: StepSize) -> StepInputs:
        """What was written, on the device."""
        n_rows, n_seqs, n_draws = size
        parts = {"query_starts": n_seqs + 1, "context_lens": n_seqs, "block_tables": n_seqs, "logit_rows": n_draws}
        names = StepInputs.__dataclass_fields__
        return StepInputs(**{name: getattr(self._inputs, name)[: parts.get(name, n_rows)].to(self._device) for name in names})


def _items(tensor: Tensor) -> memoryview:
    """A flat view of int64 or int32 for Python, which reads and writes single items twenty times faster than a tensor's."""
    return memoryview(tensor.numpy()).cast("B").cast("q" if tensor.dtype == torch.int64 else "i")
