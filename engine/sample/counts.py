"""What the sampler remembers of a sequence, kept up from token to token instead of made anew for each."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from engine.types import Sequence


class TokenCounts:
    """The distinct tokens of a growing list from position `start` on, and how often each is there.

    Counting a context of 60,000 tokens takes 7 ms, which every row with a penalty would pay at every step.
    """

    def __init__(self, start: int, n_vocab: int, device: torch.device) -> None:
        self._start = start
        self._n_vocab = n_vocab
        self._device = device
        self._forget()

    def _forget(self) -> None:
        self._n_counted = self._start
        self._rows: dict[int, int] = {}
        self._ids = np.zeros(0, dtype=np.int64)
        self._counts = np.zeros(0, dtype=np.float64)
        self._share()

    def _share(self) -> None:
        n = len(self._rows)
        self.ids = torch.from_numpy(self._ids[:n]).to(self._device)
        """int64 [distinct], in the order of their first appearance. Ids that have no row of logits are left out: a prompt
        given in tokens may name some that the tokenizer does not know."""
        self.counts = torch.from_numpy(self._counts[:n]).to(self._device)
        """float64 [distinct]"""

    def follow(self, token_ids: list[int]) -> TokenCounts:
        """Count what was appended since the last call; a list that has become shorter is counted anew."""
        if len(token_ids) < self._n_counted:
            self._forget()
        fresh = token_ids[self._n_counted :]
        self._n_counted = max(self._start, len(token_ids))
        for token_id, count in Counter(fresh).items() if len(fresh) > 1 else ((token_id, 1) for token_id in fresh):
            if not 0 <= token_id < self._n_vocab:
                continue
            row = self._rows.setdefault(token_id, len(self._rows))
            if row == len(self._ids):
                room = np.zeros(row + 64, np.int64)
                self._ids, self._counts = np.append(self._ids, room), np.append(self._counts, room)
            self._ids[row] = token_id
            self._counts[row] += count
        if fresh and (len(self._rows) > len(self.ids) or self._device.type != "cpu"):
            self._share()
        return self


class PenaltyState:
    """Of one sequence, for the edits that its request asks for."""

    def __init__(self, seq: Sequence, n_vocab: int, device: torch.device) -> None:
        params = seq.request.params
        self.seen = TokenCounts(0, n_vocab, device)
        """For repetition_penalty, to which the prompt counts too."""
        self.output = TokenCounts(seq.n_prompt, n_vocab, device)
        """For frequency_penalty and presence_penalty."""
        self.biased = torch.tensor([*params.logit_bias], dtype=torch.int64, device=device)
        self.biases = torch.tensor([*params.logit_bias.values()], dtype=torch.float32, device=device)
        """float32, of the ids in `biased`"""
        ends = [token_id for token_id in seq.end_ids if 0 <= token_id < n_vocab]
        self.ends = torch.tensor(ends, dtype=torch.int64, device=device)
        """End tokens that have a row: a client's stop ids may name ones that the tokenizer does not know."""
