"""A part of the contract in ops.py: from logits to tokens. Letters and rules are those of that file."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Sample(Protocol):
    """A token id for each row of logits, int64 [rows]; logits float32 [rows, n], n below 2^20, rows any distance apart.

    Without draws, and in rows whose temperature is 0: the likeliest, the first of several. -1 where the largest logit is not
    finite (NaN counts as the largest), and where a row's cuts leave nothing.

    draws float64 [rows, 4] has temperature (1e-5 to 1e30, or 0), floor, top_k and top_p; numbers float64 [rows], in [0, 1). A
    logit is tempered: (logit - largest of the row) * float32(log2(e) / temperature), and weighs 2^tempered. Three cuts, each of
    what the one before it left: values below floor (log2 of a min_p, -inf for none; as float32); all but the top_k
    largest (0 or n and more: none); all but the largest values that hold the share top_p of the weight, as few of them as
    do (1 or more: none). Values equal to the last one kept stay too, so that nothing hangs on how a sort orders equals. The
    token is the first, in vocabulary order, whose running sum of weights that stay exceeds numbers * their sum.

    Implementations agree to the last bit. Weights are float32, by the formula of kernels/reference/sample.py, rounded to whole
    units of 2^-43 and summed as integers, so that sums are exact in any order; shares of sums are taken in float64.
    """

    def __call__(self, logits: Tensor, draws: Tensor | None = None, numbers: Tensor | None = None) -> Tensor: ...


class Penalize(Protocol):
    """Edit one row of logits float32 [n] in place.

    seen and output int64 are distinct ids below n, counts float64 [output]. Of seen, a logit above 0 is divided by
    `repetition`, any other one multiplied by it; from those of output float32(frequency * counts + presence) is subtracted then.
    """

    def __call__(
        self,
        logits: Tensor,
        seen: Tensor,
        repetition: float,
        output: Tensor,
        counts: Tensor,
        frequency: float,
        presence: float,
    ) -> None: ...


class Logprobs(Protocol):
    """Log probabilities of ids int64 [rows] under logits float32 [rows, n], n below 2^20, and the n_top <= n likeliest tokens.

    Returns values float32 [rows], ranks int64 [rows] (1 + the number of logits strictly larger), top values float32 and
    top ids int64 [rows, n_top], likeliest first, of equals the first. Where the largest logit is not finite, values are
    NaN, the rank is 1 and top ids are 0, 1, 2 ...
    """

    def __call__(self, logits: Tensor, ids: Tensor, n_top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...


class Uniform(Protocol):
    """keys int64 [n, 3] (seed, choice, position) -> float64 [n], in [0, 1) with 53 random bits.

    Philox4x32-10 of the counter (position's low and high word, choice, 0) under the key (seed's low and high word); the
    upper 27 and 26 bits of the first two words are the number's bits.
    """

    def __call__(self, keys: Tensor) -> Tensor: ...
