"""A runner that makes believe it has less memory."""

from __future__ import annotations

from msgspec import structs

from engine.core import Runner


class FewerBlocks:
    """The same runner with only some of its blocks in use."""

    def __init__(self, runner: Runner, n_blocks: dict[str, int], max_model_len: int | None = None) -> None:
        """n_blocks: by the first word of a group's name; other groups keep theirs."""
        self.max_model_len = max_model_len or runner.max_model_len
        self.kv_extras, self.block_size = runner.kv_extras, runner.block_size
        self.kv_groups = tuple(
            structs.replace(group, n_blocks=min(group.n_blocks, n_blocks.get(group.name.split()[0], group.n_blocks)))
            for group in runner.kv_groups
        )
        self.move, self.execute = runner.move, runner.execute
