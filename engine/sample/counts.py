"""TokenCounts: which tokens a sequence holds and how often, kept up instead of counted anew for each token."""

from __future__ import annotations

from collections import Counter

import torch


class TokenCounts:
    """The distinct tokens of a growing list from position `start` on.

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
        self.ids = torch.empty(0, dtype=torch.int64, device=self._device)
        """int64 [distinct], in the order of their first appearance. Ids that have no row of logits are left out: a prompt
        given in tokens may name some that the tokenizer does not know."""
        self.counts = torch.empty(0, dtype=torch.float64, device=self._device)
        """float64 [distinct]"""

    def follow(self, token_ids: list[int]) -> TokenCounts:
        """Count what was appended since the last call; a list that has become shorter is counted anew."""
        if len(token_ids) < self._n_counted:
            self._forget()
        fresh = Counter(token_id for token_id in token_ids[self._n_counted :] if 0 <= token_id < self._n_vocab)
        self._n_counted = max(self._start, len(token_ids))
        unseen = [token_id for token_id in fresh if token_id not in self._rows]
        if unseen:
            self._rows |= zip(unseen, range(len(self._rows), len(self._rows) + len(unseen)), strict=True)
            self.ids = torch.cat((self.ids, torch.tensor(unseen, device=self._device)))
            self.counts = torch.cat((self.counts, self.counts.new_zeros(len(unseen))))
        if fresh:
            rows = torch.tensor([self._rows[token_id] for token_id in fresh], device=self._device)
            added = torch.tensor([*fresh.values()], dtype=torch.float64, device=self._device)
            self.counts = self.counts.index_add(0, rows, added)
        return self


class PenaltyState:
    """What the sampler remembers of one sequence from token to token."""

    def __init__(self, n_prompt: int, n_vocab: int, device: torch.device) -> None:
        self.seen = TokenCounts(0, n_vocab, device)
        """For repetition_penalty, to which the prompt counts too."""
        self.output = TokenCounts(n_prompt, n_vocab, device)
        """For frequency_penalty and presence_penalty."""
