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
        self._copies = torch.empty(0, n_vocab)
        """Of rows before their edits. Kept, for glibc does not give the same place to the next aligned piece of this size."""
        self._sample = resolve("sample", OpSpec(device, torch.float32)).fn

    def sample(self, logits: Tensor, seqs: Items[Sequence]) -> list[tuple[int, TokenLogprob | None]]:
        """The next token of seqs[i] from row i, with its log probability if the request asks for it.

        logits float32 [rows, at least n_vocab]; rows whose requests have edits (penalties, bias, min_tokens) are edited in
        place. Raises BrokenLogits.
        """
        if logits.shape[1] > self.n_vocab:
            logits = logits[:, : self.n_vocab]
        edited = [row for row, seq in enumerate(seqs) if processors.edits(seq)]
        asked = [row for row, seq in enumerate(seqs) if seq.request.params.logprobs is not None]
        raw = logits
        if asked and (edited or len(asked) < len(seqs)):
            raw = self._copied(logits, asked)
        for row in edited:
            processors.edit(logits[row], seqs[row])
        token_ids = self._sample(logits, *self._draws(seqs)).tolist()
        if min(token_ids, default=0) < 0:
            raise BrokenLogits([seq.request.uid for seq, token_id in zip(seqs, token_ids, strict=True) if token_id < 0])
        logprobs: list[TokenLogprob | None] = [None] * len(seqs)
        if asked:
            n_top = [seqs[row].request.params.logprobs or 0 for row in asked]
            for row, logprob in zip(asked, token_logprobs(raw, [token_ids[row] for row in asked], n_top), strict=True):
                logprobs[row] = logprob
        return list(zip(token_ids, logprobs, strict=True))

    def _copied(self, logits: Tensor, rows: list[int]) -> Tensor:
        """Stay as they are until the next call."""
        if len(self._copies) < len(rows) or self._copies.device != logits.device:
            self._copies = logits.new_empty(1 << (len(rows) - 1).bit_length(), self.n_vocab)
        return torch.index_select(logits, 0, torch.tensor(rows, device=logits.device), out=self._copies[: len(rows)])

    def _draws(self, seqs: Items[Sequence]) -> tuple[Tensor | None, Tensor | None]:
        """How each row is drawn and its number, as the operator takes them; none where all rows are greedy."""
        draws = [processors.draw(seq.request.params) for seq in seqs]
        if all(draw is processors.GREEDY for draw in draws):
            return None, None
        numbers = uniforms(((seq.seed, seq.index, len(seq.token_ids)) for seq in seqs), self._device)
        return torch.tensor(draws, dtype=torch.float64, device=self._device), numbers
