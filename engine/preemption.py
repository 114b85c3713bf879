"""What becomes of a sequence that gives way: SWAP keeps its KV in host memory, RECOMPUTE computes it again."""

from __future__ import annotations

from engine.config import PreemptionMode

SMOOTHING = 0.2
"""Weight of a new measurement in a running mean."""


class Preemption:
    """Chooses by what both would cost, from speeds that the engine measures as it goes."""

    def __init__(self, mode: PreemptionMode, *, has_host_memory: bool) -> None:
        self.copied_bytes_per_s: float | None = None
        self.prefilled_tokens_per_s: float | None = None
        self._mode = mode
        self._has_host_memory = has_host_memory

    def swaps(self, n_tokens: int, n_bytes: int) -> bool:
        """Whether to swap a sequence whose n_tokens take n_bytes. Before anything was measured copies count as cheaper."""
        if self._mode != "auto" or not self._has_host_memory:
            return self._mode == "swap"
        if self.copied_bytes_per_s is None or self.prefilled_tokens_per_s is None:
            return True
        copy_s = 2 * n_bytes / self.copied_bytes_per_s
        return copy_s < n_tokens / self.prefilled_tokens_per_s

    def note_copies(self, n_bytes: int, seconds: float) -> None:
        self.copied_bytes_per_s = _mean(self.copied_bytes_per_s, n_bytes, seconds)

    def note_prefill(self, n_tokens: int, seconds: float) -> None:
        self.prefilled_tokens_per_s = _mean(self.prefilled_tokens_per_s, n_tokens, seconds)


def _mean(before: float | None, amount: int, seconds: float) -> float:
    rate = amount / max(seconds, 1e-9)
    return rate if before is None else before + SMOOTHING * (rate - before)
