"""The pool on toy sizes, with exact block ids."""

from __future__ import annotations

import pytest

from engine.kv.blocks import BlockPool
from engine.kv.hashing import block_keys, root_key


def ids(blocks) -> list[int]:
    return [block.id for block in blocks]


def test_blocks_are_taken_oldest_first_and_uncached_ones_before_cached_ones() -> None:
    pool = BlockPool(4)
    taken = pool.allocate(4)
    assert ids(taken) == [0, 1, 2, 3]
    pool.publish(taken[0], b"a")
    for block in (taken[0], taken[2], taken[1]):
        pool.release(block)
    assert ids(pool.free_blocks()) == [1, 2, 0]
    assert ids(pool.allocate(2)) == [1, 2]


def test_an_evicted_block_leaves_the_index() -> None:
    pool = BlockPool(1)
    block = pool.allocate(1)[0]
    pool.publish(block, b"a")
    pool.release(block)
    assert pool.find(b"a") is block
    assert pool.allocate(1) == [block]
    assert pool.find(b"a") is None and block.key is None and pool.n_evicted == 1


def test_a_found_block_leaves_the_free_queue_and_is_the_last_to_be_evicted_afterwards() -> None:
    pool = BlockPool(3)
    for block, key in zip(pool.allocate(3), (b"a", b"b", b"c"), strict=True):
        pool.publish(block, key)
        pool.release(block)
    found = pool.find(b"a")
    pool.acquire(found)
    assert ids(pool.free_blocks()) == [1, 2]
    pool.release(found)
    assert ids(pool.free_blocks()) == [1, 2, 0]


def test_what_was_found_again_outlives_what_came_later_and_was_not() -> None:
    pool = BlockPool(4)
    for block, key in zip(pool.allocate(4), (b"a", b"b", b"c", b"d"), strict=True):
        pool.publish(block, key)
        pool.release(block)
    pool.acquire(pool.find(b"a"))
    pool.release(pool.find(b"a"))
    for key in (b"e", b"f", b"g", b"h"):  # calls that nobody repeats
        (block,) = pool.allocate(1)
        pool.publish(block, key)
        pool.release(block)
    assert pool.find(b"a") is not None and pool.find(b"e") is None
    assert pool.allocate(4)[-1].id == 0, "when nothing else is left it is taken too"


def test_what_is_computed_again_after_it_was_evicted_counts_as_found_again() -> None:
    pool = BlockPool(2)
    for key in (b"a", b"b", b"c", b"a", b"d", b"e"):
        (block,) = pool.allocate(1)
        pool.publish(block, key)
        pool.release(block)
    assert pool.find(b"a") is not None and pool.find(b"d") is None


def test_at_most_a_share_of_the_blocks_is_kept_for_having_been_found_again() -> None:
    pool = BlockPool(5, protected_share=0.4)
    blocks = pool.allocate(5)
    for block, key in zip(blocks, (b"a", b"b", b"c", b"d", b"e"), strict=True):
        pool.publish(block, key)
        pool.release(block)
    for block in blocks[:4]:
        pool.acquire(block)
        pool.release(block)
    assert ids(pool.free_blocks()) == [4, 0, 1, 2, 3]
    pool.check([])


def test_without_such_a_share_the_least_recently_used_block_is_taken() -> None:
    pool = BlockPool(2, protected_share=0.0)
    blocks = pool.allocate(2)
    for block, key in zip(blocks, (b"a", b"b"), strict=True):
        pool.publish(block, key)
        pool.release(block)
    pool.acquire(blocks[0])
    pool.release(blocks[0])
    assert ids(pool.allocate(2)) == [1, 0]


def test_a_second_block_with_a_known_key_is_not_indexed() -> None:
    pool = BlockPool(2)
    first, second = pool.allocate(2)
    assert pool.publish(first, b"a") is first
    assert pool.publish(second, b"a") is first
    assert second.key is None
    pool.check([[0], [1]])


def test_releasing_twice_is_caught() -> None:
    pool = BlockPool(1)
    block = pool.allocate(1)[0]
    pool.release(block)
    with pytest.raises(AssertionError, match="without a reference"):
        pool.release(block)


def test_check_sees_a_table_that_holds_a_block_nobody_counted() -> None:
    pool = BlockPool(2)
    pool.allocate(1)
    with pytest.raises(AssertionError, match="refs"):
        pool.check([[0], [0]])


def test_evict_cached_forgets_free_blocks_only() -> None:
    pool = BlockPool(2)
    kept, dropped = pool.allocate(2)
    pool.publish(kept, b"a")
    pool.publish(dropped, b"b")
    pool.release(dropped)
    assert pool.evict_cached() == 1
    assert pool.find(b"a") is kept and pool.find(b"b") is None


def test_extras_cannot_collide_by_concatenation_or_type() -> None:
    variants = [
        {"model": "ab", "salt": "c"},
        {"model": "a", "salt": "bc"},
        {"model": "abc", "salt": ""},
        {"model": "abc"},
        {"modelabc": ""},
        {"model": 1},
        {"model": "1"},
    ]
    assert len({root_key(extras) for extras in variants}) == len(variants)


def test_a_key_depends_on_the_parent_and_on_token_borders() -> None:
    root = root_key({})
    first, second = block_keys(root, [1, 2, 3, 4], 2)
    assert block_keys(root, [1, 2, 3], 2) == [first], "a block that is not full has no key"
    assert block_keys(first, [3, 4], 2) == [second] != block_keys(root, [3, 4], 2)
    assert block_keys(root, [1, 2], 1)[1] != first
    assert block_keys(root_key({"salt": "x"}), [1, 2], 2) != [first]
    assert block_keys(root, [258], 1) != block_keys(root, [2, 1], 2)
