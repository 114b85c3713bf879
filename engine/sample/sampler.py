"""Sampler: one token for each row of logits, in batch, where no row's token depends on the other rows."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from engine.errors import BrokenLogits
from engine.sample import processors
from engine.sample.logprobs import token_logprobs
from engine.sample.rng import uniform
from engine.types import Sequence, TokenLogprob

_CPU_VALUES = 1 << 16
"""Logits of the rows drawn at once on a CPU: with more, their intermediate values leave the cache (seven times slower)."""


class Sampler:
    """Draws tokens below n_vocab; rows of the output matrix past the tokenizer's vocabulary are padding."""

    def __init__(self, n_vocab: int) -> None:
        self.n_vocab = n_vocab

    def sample(self, logits: Tensor, seqs: Items[Sequence]) -> list[tuple[int, TokenLogprob | None]]:
        """The next token of seqs[i] from row i, with its log probability if the request asks for it.

        logits float32 [rows, at least n_vocab], left as they are. Raises BrokenLogits.
        """
        logits = logits[:, : self.n_vocab]
        edited = self._edited(logits, seqs)
        best, greedy_ids = edited.max(dim=-1)
        if not bool(best.isfinite().all()):
            raise _broken(seqs, [row for row, ok in enumerate(best.isfinite().tolist()) if not ok])
        token_ids = greedy_ids.tolist()
        drawn = [row for row, seq in enumerate(seqs) if seq.request.params.temperature >= processors.GREEDY_BELOW]
        n_together = max(1, _CPU_VALUES // self.n_vocab) if logits.device.type == "cpu" else len(seqs)
        for start in range(0, len(drawn), n_together):
            rows = drawn[start : start + n_together]
            for row, token_id in zip(rows, self._draw(edited, rows, seqs), strict=True):
                token_ids[row] = token_id
        if drawn and max(token_ids) >= self.n_vocab:
            raise _broken(seqs, [row for row, token_id in enumerate(token_ids) if token_id >= self.n_vocab])
        logprobs = self._logprobs(logits, token_ids, seqs)
        return list(zip(token_ids, logprobs, strict=True))

    @staticmethod
    def _edited(logits: Tensor, seqs: Items[Sequence]) -> Tensor:
        rows = [row for row, seq in enumerate(seqs) if processors.edits(seq)]
        if rows:
            logits = logits.clone()
            for row in rows:
                processors.edit(logits[row], seqs[row])
        return logits

    @staticmethod
    def _draw(logits: Tensor, rows: list[int], seqs: Items[Sequence]) -> list[int]:
        """Inverse of the cumulative distribution in vocabulary order, at one uniform number per row."""
        if len(rows) < len(seqs):
            logits = logits.index_select(0, torch.tensor(rows, device=logits.device))
        params = [seqs[row].request.params for row in rows]
        cumulative = processors.cut(processors.temper(logits, params), params).cumsum(dim=-1, dtype=torch.float64)
        numbers = [uniform(seqs[row].seed, seqs[row].index, len(seqs[row].token_ids)) for row in rows]
        targets = torch.tensor(numbers, dtype=torch.float64, device=logits.device) * cumulative[:, -1]
        # The first token whose sum exceeds the target: one of weight 0 adds nothing to the sum and is never the first.
        # Where all weights are 0, none does: the id is then the vocabulary's size, which no token has.
        return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].tolist()

    @staticmethod
    def _logprobs(logits: Tensor, token_ids: list[int], seqs: Items[Sequence]) -> list[TokenLogprob | None]:
        result: list[TokenLogprob | None] = [None] * len(seqs)
        rows = [row for row, seq in enumerate(seqs) if seq.request.params.logprobs is not None]
        if rows:
            asked = logits.index_select(0, torch.tensor(rows, device=logits.device))
            n_top = [seqs[row].request.params.logprobs or 0 for row in rows]
            for row, logprob in zip(rows, token_logprobs(asked, [token_ids[row] for row in rows], n_top), strict=True):
                result[row] = logprob
        return result


def _broken(seqs: Items[Sequence], rows: list[int]) -> BrokenLogits:
    return BrokenLogits([seqs[row].request.uid for row in rows])
