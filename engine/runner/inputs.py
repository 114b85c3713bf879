"""From a step plan to tensors."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from engine.kv.groups import KVGroup
from engine.types import StepInputs, StepPlan


class StepSize(NamedTuple):
    n_rows: int
    """Tokens."""
    n_seqs: int
    n_draws: int
    """Entries that sample."""


class StepBuffers:
    """The tensors of a step, as large as steps get, and written in place: a recorded step reads them where they lie."""

    def __init__(
        self, groups: Sequence[KVGroup], n_rows: int, n_seqs: int, n_columns: int, block_size: int, device: torch.device
    ) -> None:
        """For steps of up to n_rows tokens in n_seqs sequences of n_columns blocks."""
        self.n_rows, self.n_seqs, self.n_columns = n_rows, n_seqs, n_columns
        self._groups = groups
        self._block_size = block_size
        self._device = device
        rows, seqs = (n_rows,), (n_seqs,)
        first = StepInputs(
            token_ids=torch.zeros(rows, dtype=torch.int64),
            positions=torch.zeros(rows, dtype=torch.int64),
            query_starts=torch.zeros(n_seqs + 1, dtype=torch.int32),
            context_lens=torch.zeros(seqs, dtype=torch.int32),
            slots=torch.zeros(rows, dtype=torch.int64),
            block_tables=torch.full((n_seqs, self._width(groups[0])), -1, dtype=torch.int32),
            logit_rows=torch.zeros(seqs, dtype=torch.int64),
        )
        self._inputs = [first] + [
            replace(
                first,
                slots=torch.zeros(rows, dtype=torch.int64),
                block_tables=torch.full((n_seqs, self._width(group)), -1, dtype=torch.int32),
            )
            for group in groups[1:]
        ]
        self._token_ids, self._positions = _items(first.token_ids), _items(first.positions)
        self._query_starts, self._context_lens = _items(first.query_starts), _items(first.context_lens)
        self._logit_rows = _items(first.logit_rows)
        self._tables = [_Tables(inputs, block_size, group.recurrent) for inputs, group in zip(self._inputs, groups, strict=True)]

    def _width(self, group: KVGroup) -> int:
        return 1 if group.recurrent else self.n_columns

    def hold(self, plan: StepPlan) -> bool:
        """Whether the plan fits, whose sequences have no more blocks than the rows have columns."""
        return plan.n_tokens <= self.n_rows and len(plan.entries) <= self.n_seqs

    def enlarged(self, plan: StepPlan) -> StepBuffers:
        """Others, in which the plan fits."""
        return StepBuffers(self._groups, plan.n_tokens, len(plan.entries), self.n_columns, self._block_size, self._device)

    def write(self, plan: StepPlan) -> StepSize:
        """Write a plan that fits, with at least one entry, whose sequences own blocks for all their scheduled tokens."""
        row = n_draws = 0
        for i, entry in enumerate(plan.entries):
            seq, start, n_query = entry.seq, entry.start, entry.n_query
            end = start + n_query
            if n_query == 1:
                self._token_ids[row] = seq.token_ids[start]
                self._positions[row] = start
            else:
                rows = slice(row, row + n_query)
                self._token_ids[rows] = array("q", seq.token_ids[start:end])
                self._positions[rows] = array("q", range(start, end))
            for tables, block_ids in zip(self._tables, seq.tables, strict=True):
                tables.write(i, row, block_ids, start, end)
            row += n_query
            self._context_lens[i] = end
            self._query_starts[i + 1] = row
            if entry.samples:
                self._logit_rows[n_draws] = row - 1
                n_draws += 1
        return StepSize(row, len(plan.entries), n_draws)

    def logit_rows(self, n_draws: int) -> Tensor:
        return self._inputs[0].logit_rows[:n_draws]

    def inputs(self, size: StepSize) -> list[StepInputs]:
        """What was written, on the device, as each group sees it."""
        n_rows, n_seqs, n_draws = size
        parts = {"query_starts": n_seqs + 1, "context_lens": n_seqs, "block_tables": n_seqs, "logit_rows": n_draws}

        def part(inputs: StepInputs, *names: str) -> dict[str, Tensor]:
            return {name: getattr(inputs, name)[: parts.get(name, n_rows)].to(self._device) for name in names}

        first = StepInputs(**part(self._inputs[0], *StepInputs.__dataclass_fields__))
        return [first] + [replace(first, **part(inputs, "slots", "block_tables")) for inputs in self._inputs[1:]]


class _Tables:
    """Slots and block tables of one group."""

    def __init__(self, inputs: StepInputs, block_size: int, is_state: bool) -> None:
        self._slots, self._items = _items(inputs.slots), _items(inputs.block_tables)
        n_seqs, self._n_columns = inputs.block_tables.shape
        self._block_size = block_size
        self._is_state = is_state
        self._written: list[tuple[list[int] | None, int]] = [(None, 0)] * n_seqs
        """Of each row of the block tables: whose ids it holds, and how many."""

    def write(self, i: int, row: int, block_ids: list[int], start: int, end: int) -> None:
        """Of sequence i, which has the rows from `row` on, for its tokens start .. end."""
        size = self._block_size
        if self._is_state:
            self._items[i] = block_ids[0]
            return
        if end == start + 1:
            self._slots[row] = block_ids[start // size] * size + start % size
        else:
            slots = array("q", [block_ids[p // size] * size + p % size for p in range(start, end)])
            self._slots[row : row + end - start] = slots
        n_blocks = -(-end // size)
        held, n_held = self._written[i]
        if held is not block_ids or n_held != n_blocks:
            self._write_table(i, block_ids, n_blocks)

    def _write_table(self, i: int, block_ids: list[int], n_blocks: int) -> None:
        """Row i; of a list that it holds already only what was appended since."""
        held, n_held = self._written[i]
        first = n_held if held is block_ids else 0
        if first != n_blocks:
            at = i * self._n_columns
            if first < n_blocks:
                self._items[at + first : at + n_blocks] = array("i", block_ids[first:n_blocks])
            if n_held > n_blocks:
                self._items[at + n_blocks : at + n_held] = array("i", [-1]) * (n_held - n_blocks)
            self._written[i] = block_ids, n_blocks
        elif held is not block_ids:
            self._written[i] = block_ids, n_blocks


def _items(tensor: Tensor) -> memoryview:
    """A flat view of int64 or int32 for Python, which reads and writes single items twenty times faster than a tensor's."""
    return memoryview(tensor.numpy()).cast("B").cast("q" if tensor.dtype == torch.int64 else "i")
