"""Which request has which hue: the lowest free one when it is first seen, kept until it is gone."""

from __future__ import annotations

from collections.abc import Iterable


class Hues:
    """Hues 0 .. n - 1. When all are taken, requests share them."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._by_uid: dict[int, int] = {}

    def update(self, uids: Iterable[int]) -> None:
        """These requests, and no others, have hues now."""
        present = sorted(set(uids))
        kept = {uid: self._by_uid[uid] for uid in present if uid in self._by_uid}
        loads = [0] * self._n
        for hue in kept.values():
            loads[hue] += 1
        for uid in present:
            if uid not in kept:
                kept[uid] = min(range(self._n), key=loads.__getitem__)
                loads[kept[uid]] += 1
        self._by_uid = kept

    def get(self, uid: int) -> int | None:
        return self._by_uid.get(uid)
