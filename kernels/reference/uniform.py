"""Random numbers from counters, in integer arithmetic that is the same on every platform."""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF


def philox4x32(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox4x32-10: four random 32-bit words for a 128-bit counter under a 64-bit key.

    Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC11).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = 0xD2511F53 * c0
        product1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0 = (k0 + 0x9E3779B9) & _MASK
        k1 = (k1 + 0xBB67AE85) & _MASK
    return c0, c1, c2, c3


def uniform(keys: Tensor) -> Tensor:
    numbers = []
    for seed, choice, position in keys.tolist():
        counter = (position & _MASK, position >> 32 & _MASK, choice & _MASK, 0)
        high, low, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32 & _MASK))
        numbers.append(((high >> 5) * 67108864 + (low >> 6)) / 9007199254740992)
    return torch.tensor(numbers, dtype=torch.float64, device=keys.device)
