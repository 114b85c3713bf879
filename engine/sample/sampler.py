"""Sampler: one token for each row of logits, in batch, where no row's token depends on the other rows."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from engine.errors import BrokenLogits
from engine.sample import processors
from engine.sample.logprobs import token_logprobs
from engine.sample.rng import uniforms
from engine.types import Sequence, TokenLogprob
from kernels.ops import OpSpec
from kernels.registry import resolve


class Sampler:
    """Draws tokens below n_vocab; rows of the output matrix past the tokenizer's vocabulary are padding."""

    def __init__(self, n_vocab: int, device: str = "cpu") -> None:
        self.n_vocab = n_vocab
        self._device = device
        self._sample = resolve("sample", OpSpec(device, torch.float32)).fn

    def sample(self, logits: Tensor, seqs: Items[Sequence]) -> list[tuple[int, TokenLogprob | None]]:
        """The next token of seqs[i] from row i, with its log probability if the request asks for it.

        logits float32 [rows, at least n_vocab], left as they are. Raises BrokenLogits.
        """
        if logits.shape[1] > self.n_vocab:
            logits = logits[:, : self.n_vocab]
        token_ids = self._sample(self._edited(logits, seqs), *self._draws(seqs)).tolist()
        if min(token_ids, default=0) < 0:
            raise BrokenLogits([seq.request.uid for seq, token_id in zip(seqs, token_ids, strict=True) if token_id < 0])
        return list(zip(token_ids, self._logprobs(logits, token_ids, seqs), strict=True))

    @staticmethod
    def _edited(logits: Tensor, seqs: Items[Sequence]) -> Tensor:
        rows = [row for row, seq in enumerate(seqs) if processors.edits(seq)]
        if rows:
            logits = logits.clone()
            for row in rows:
                processors.edit(logits[row], seqs[row])
        return logits

    def _draws(self, seqs: Items[Sequence]) -> tuple[Tensor | None, Tensor | None]:
        """How each row is drawn and its number, as the operator takes them; none where all rows are greedy."""
        draws = [processors.draw(seq.request.params) for seq in seqs]
        if all(draw is processors.GREEDY for draw in draws):
            return None, None
        numbers = uniforms(((seq.seed, seq.index, len(seq.token_ids)) for seq in seqs), self._device)
        return torch.tensor(draws, dtype=torch.float64, device=self._device), numbers

    @staticmethod
    def _logprobs(logits: Tensor, token_ids: list[int], seqs: Items[Sequence]) -> list[TokenLogprob | None]:
        result: list[TokenLogprob | None] = [None] * len(seqs)
        rows = [row for row, seq in enumerate(seqs) if seq.request.params.logprobs is not None]
        if rows:
            asked = logits if len(rows) == len(seqs) else logits.index_select(0, torch.tensor(rows, device=logits.device))
            n_top = [seqs[row].request.params.logprobs or 0 for row in rows]
            for row, logprob in zip(rows, token_logprobs(asked, [token_ids[row] for row in rows], n_top), strict=True):
                result[row] = logprob
        return result
