"""A connector whose every order waits until the test lets it happen, in any order, whole, in part or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.kv.tiers.connector import Holdings
from tests.engine.fake_runner import FakeRunner


class FakeConnector:
    """Keeps what it was given of the fake runner's host memory. `orders` are those that have not happened."""

    def __init__(self, runner: FakeRunner) -> None:
        self.kept: dict[bytes, list[int | None]] = {}
        self.orders: list[Callable[[int | None], None]] = []
        self.closed = False
        self._runner = runner

    def match(self, keys: Sequence[bytes]) -> int:
        return next((i for i, key in enumerate(keys) if key not in self.kept), len(keys))

    def load(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[int], None]) -> None:
        for slot in slots:  # a disk writes as soon as it is asked
            self._runner.host[slot] = [-1] * len(self._runner.host[slot])

        def happen(most: int | None) -> None:
            n = min(self.match(keys), len(keys) if most is None else most)
            for key, slot in list(zip(keys, slots, strict=True))[:n]:
                self._runner.host[slot] = list(self.kept[key])
            done(n)

        self.orders.append(happen)

    def store(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[], None]) -> None:
        def happen(most: int | None) -> None:
            for key, slot in list(zip(keys, slots, strict=True))[:most]:
                self.kept[key] = list(self._runner.host[slot])
            done()

        self.orders.append(happen)

    def happen(self, i: int = 0, most: int | None = None) -> None:
        """Let one order happen; of its blocks only the first `most`."""
        self.orders.pop(i)(most)

    def lose(self, key: bytes) -> None:
        self.kept.pop(key, None)

    def holdings(self) -> Holdings:
        return Holdings(n_blocks=len(self.kept))

    def clear(self) -> None:
        self.kept.clear()

    def close(self) -> None:
        while self.orders:
            self.happen()
        self.closed = True
