"""The laws of the KV cache, as assertions over all live sequences."""

from __future__ import annotations

from engine.kv.hashing import block_keys
from engine.kv.manager import KVManager
from engine.kv.memory import GroupMemory
from engine.types import Sequence


def check(kv: KVManager, sequences: list[Sequence]) -> None:
    """Assert laws a, b and c for all live sequences, and that what is announced as being computed is."""
    pending: dict[bytes, int] = {}
    for seq in sequences:
        assert seq.n_computed <= len(seq.token_ids)
        assert seq.n_published * kv.block_size <= seq.n_computed
        assert seq.put_aside is None
        for i in seq.announced:
            pending[seq.block_keys[i]] = pending.get(seq.block_keys[i], 0) + 1
    assert pending == kv.pending, "keys announced as being computed and running sequences disagree"
    for g, memory in enumerate(kv.memories):
        tables = [[block_id for block_id in seq.tables[g] if block_id >= 0] for seq in sequences]
        memory.pool.check([*tables, *kv.pins.tables(memory)])
        memory.host.check()
        for seq in sequences:
            _check_table(kv, g, memory, seq)


def _check_table(kv: KVManager, g: int, memory: GroupMemory, seq: Sequence) -> None:
    table, size = seq.tables[g], kv.block_size
    expected = block_keys(kv.root_key(seq), seq.token_ids[: seq.n_computed // size * size], size)
    if memory.group.recurrent:
        key = memory.pool.blocks[table[0]].key
        assert len(table) == 1 and (key is None or (key == expected[-1] and seq.n_computed == len(expected) * size))
        return
    assert len(table) * size >= seq.n_computed
    first = memory.group.first_needed(seq.n_computed, size)
    assert all(block_id >= 0 for block_id in table[first:]), "a block within the window is missing"
    published = [memory.pool.blocks[block_id].key if block_id >= 0 else None for block_id in table[: seq.n_published]]
    assert all(ours in (None, theirs) for ours, theirs in zip(published, expected, strict=False))
    assert None not in published[first:], "a published block's key does not follow from its tokens"
