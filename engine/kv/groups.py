"""KVGroup: layers whose memory of a text is of one kind, so that they share a block table. Torch-free arithmetic of tables."""

from __future__ import annotations

from msgspec import Struct


class KVGroup(Struct, frozen=True, kw_only=True):
    """Layers that need all that was computed, or only the last `window` tokens, or a state that they change as they go.

    Entry i of a table of attention layers is the block of tokens i * block_size and following. Layers with a state have a
    table of one entry: the block in which the state is now. Such a state is known to others as it was at the end of a block of
    tokens, under that block's key.
    """

    n_blocks: int
    block_bytes: int = 1
    n_host_blocks: int = 0
    """Slots of host memory, each for one block."""
    layers: tuple[int, ...] = ()
    window: int = 0
    """Positions that a query sees at most, its own included; 0: all. Where windows are chunks of the text, behind whose border a
    query sees less, blocks are kept as for a window that slides: at most a chunk more than is needed."""
    recurrent: bool = False

    @property
    def name(self) -> str:
        return "state" if self.recurrent else f"window of {self.window}" if self.window else "all tokens"

    @property
    def keeps_all(self) -> bool:
        """Whether all tokens are needed, from the first one on."""
        return not (self.window or self.recurrent)

    def first_needed(self, n_tokens: int, block_size: int) -> int:
        """The first entry that is needed to compute what follows n_tokens."""
        return max(0, n_tokens - self.window + 1) // block_size if self.window else 0

    def written(self, start: int, end: int, block_size: int) -> range:
        """Entries that computing tokens start .. end writes."""
        return range(1) if self.recurrent else range(start // block_size, -(-end // block_size))

    def n_entries(self, n_computed: int, n_tokens: int, chunk: int, block_size: int) -> int:
        """Entries of the table of a sequence that is let in with n_tokens, of which n_computed are known.

        From then on it needs no more blocks at once, though it computes up to `chunk` tokens in a step, until it has more
        tokens. Beside the window it may keep a block that reaches into it, and one of tokens that a fork computes again.
        """
        if self.recurrent:
            return 1
        n_all = -(-n_tokens // block_size)
        if not self.window:
            return n_all
        return min(n_all, self.first_needed(n_computed, block_size) + -(-(self.window + chunk) // block_size) + 1)

    def most_held(self, n_tokens: int, chunk: int, block_size: int) -> int:
        """Blocks that a sequence of so many tokens ever holds at once."""
        return self.n_entries(0, n_tokens, chunk, block_size)
