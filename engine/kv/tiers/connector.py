"""Connector: a place outside the engine's own memory where blocks may be: a disk, another process, another machine.

The engine never waits for one. It asks at admission which of a prompt's next blocks a connector has, reserves slots of host
memory for them, and goes on with other sequences; once the slots are filled, the blocks are found there as any others. Blocks
to keep are copied into host memory first and held there until the connector has read them. Whatever fails is a miss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

Buffers = Sequence[memoryview]
"""The pieces of one slot of host memory, in order; together they are one block's payload."""


class Holdings(NamedTuple):
    """What a connector has, and what has passed through it since it was opened."""

    n_blocks: int = 0
    """That it can load."""
    n_bytes: int = 0
    """That it takes up, with what it keeps for other models."""
    most_bytes: int = 0
    """That it may take up."""
    read_bytes: int = 0
    written_bytes: int = 0
    n_damaged: int = 0
    """Files and blocks that were not what had been written, and were missed."""


class Connector(Protocol):
    """All but close are called on the engine thread and return at once; `done` may be called from any thread."""

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the leading keys it can load."""

    def load(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[int], None]) -> None:
        """Fill slots[i] with the block of keys[i], in order; done(n): the first n are there, and no more will be written."""

    def store(self, keys: Sequence[bytes], slots: Sequence[int], done: Callable[[], None]) -> None:
        """Keep the blocks in these slots; done: it has read them, whether it could keep them or not."""

    def holdings(self) -> Holdings: ...

    def clear(self) -> None:
        """Forget all blocks."""

    def close(self) -> None:
        """Finish what was asked for, and end. Called once, from any thread."""
