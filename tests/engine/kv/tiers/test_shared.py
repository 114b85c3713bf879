"""Blocks in shared memory: they come back whole or are missed, they go when their lease is over, whoever dies when."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import random
import sys
import time
from pathlib import Path

import pytest

from engine.kv.tiers import shared
from engine.kv.tiers.shared import SharedStore
from tests.forks import Ready, forks_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
HEADER = 20


def key(i: int) -> bytes:
    return hashlib.sha256(b"key %d" % i).digest()


def payload(i: int) -> list[memoryview]:
    """Blocks of several sizes, each in pieces."""
    sizes = (3000 + 100 * (i % 3), 1000)
    stream = random.Random(i).randbytes(sum(sizes))
    return [memoryview(stream[: sizes[0]]), memoryview(stream[sizes[0] :])]


def size(i: int) -> int:
    return HEADER + sum(len(piece) for piece in payload(i))


def store(root: Path, kind: str = "a" * 16, most: int = 1 << 30, lease_s: float = 60.0) -> SharedStore:
    (root / kind).mkdir(exist_ok=True)
    return SharedStore(root / kind, most, lease_s)


def write(blocks: SharedStore, *numbers: int) -> int:
    return blocks.write([(key(i), payload(i)) for i in numbers])


def read(blocks: SharedStore, i: int) -> bool:
    """Whether block i comes back; what comes back has to be it."""
    buffers = [memoryview(bytearray(len(piece))) for piece in payload(i)]
    if not blocks.read(key(i), buffers):
        return False
    assert buffers == payload(i), "a block came back as something else"
    return True


def files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*"))


def used_bytes(root: Path) -> int:
    """Others may remove files meanwhile."""
    total = 0
    for path in files(root):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def age(root: Path, seconds: float, pattern: str = "*") -> None:
    for path in root.glob(f"*/{pattern}"):
        os.utime(path, (time.time() - seconds,) * 2)


def test_what_one_writes_another_reads_and_takes(memory: Path) -> None:
    giver, taker = store(memory), store(memory)
    assert write(giver, 1, 2, 3) == 3 and key(2) in taker
    assert [read(taker, i) for i in range(5)] == [False, True, True, True, False]
    assert {path.stat().st_mode & 0o777 for path in files(memory)} == {0o600}
    taker.take([key(1), key(3)])
    assert [read(giver, i) for i in (1, 2, 3)] == [False, True, False] and giver.n_errors == taker.n_errors == 0
    giver.clear()
    assert files(memory) == []


def test_other_kinds_are_not_read_but_share_the_limit(memory: Path) -> None:
    first = store(memory, most=size(1) + size(2))
    write(first, 1)
    other = store(memory, "b" * 16, most=size(1) + size(2))
    assert not read(other, 1)
    assert write(other, 2, 3) == 1 and read(other, 2) and not read(other, 3)
    other.clear()
    assert read(first, 1)


def test_what_finds_no_room_is_refused_and_said_once_and_nothing_leased_is_lost(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocks = store(memory, most=size(1) + size(2))
    with caplog.at_level(logging.WARNING):
        assert write(blocks, 1, 2, 3) == 2 and write(blocks, 4) == 0 and write(blocks, 1, 5) == 1
    assert len(caplog.records) == 1 and "--kv-shared-space" in caplog.text
    assert [read(blocks, i) for i in (1, 2, 3, 4)] == [True, True, False, False]
    blocks.take([key(1), key(2)])
    assert write(blocks, 4) == 1
    with caplog.at_level(logging.WARNING):
        assert write(blocks, 5, 6) == 1
    assert len(caplog.records) == 2, "it is said again when it was well between"


def test_a_lease_that_is_over_gives_the_room_back(memory: Path) -> None:
    blocks = store(memory, most=size(1) + size(2))
    write(blocks, 1)
    age(memory, 59)
    assert blocks.sweep() == size(1) and read(blocks, 1)
    age(memory, 61)
    other = store(memory, "b" * 16, most=size(1) + size(2))
    assert write(other, 2, 4) == 2, "another kind's sweep returned it"
    assert not read(blocks, 1)


def test_what_is_given_again_is_leased_anew(memory: Path) -> None:
    blocks = store(memory)
    write(blocks, 1)
    age(memory, 61)
    write(blocks, 2)
    assert not read(blocks, 1), "writing sweeps first"
    age(memory, 59)
    write(blocks, 2)
    age_s = time.time() - files(memory)[0].stat().st_mtime
    assert age_s < 30


def test_what_was_left_half_written_is_found_by_nobody_and_goes_with_its_lease(memory: Path) -> None:
    blocks = store(memory)
    write(blocks, 1)
    (path,) = files(memory)
    partial = path.with_name("1-abcd-0.partial")
    partial.write_bytes(path.read_bytes()[:-5])
    blocks.take([key(1)])
    assert not read(blocks, 1)
    assert blocks.sweep() == partial.stat().st_size, "it takes room"
    age(memory, 61)
    assert blocks.sweep() == 0 and files(memory) == []


@pytest.mark.parametrize("damage", ["payload", "checksum", "magic", "size", "short", "long", "empty", "header only", "a link"])
def test_a_damaged_block_is_a_miss_and_removed(damage: str, memory: Path) -> None:
    blocks = store(memory)
    write(blocks, 1)
    (path,) = files(memory)
    raw = path.read_bytes()
    flip = {"payload": HEADER + 7, "checksum": 17, "magic": 2, "size": 9}
    if damage == "a link":
        elsewhere = memory / "elsewhere"
        elsewhere.write_bytes(raw)
        path.unlink()
        path.symlink_to(elsewhere)
        assert not read(blocks, 1)
        return
    damaged = {"short": raw[:-1], "long": raw + b"x", "empty": b"", "header only": raw[:HEADER]}.get(damage)
    if damaged is None:
        at = flip[damage]
        damaged = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    path.write_bytes(damaged)
    assert not read(blocks, 1) and blocks.n_errors == 1 and files(memory) == []
    assert write(blocks, 1) == 1 and read(blocks, 1)


def test_a_block_of_another_size_is_a_miss(memory: Path) -> None:
    blocks = store(memory)
    write(blocks, 1)
    assert not blocks.read(key(1), [memoryview(bytearray(n)) for n in (10, 20)])


def test_who_reads_a_block_that_is_taken_away_still_gets_it_whole(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = store(memory)
    write(blocks, 1)
    real = shared._read

    def taken_meanwhile(file: int, buffers) -> bool:
        store(memory).clear()
        return real(file, buffers)

    monkeypatch.setattr(shared, "_read", taken_meanwhile)
    assert read(blocks, 1) and files(memory) == []


def test_memory_that_takes_nothing_is_said_once_and_costs_nothing_else(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    blocks = store(memory)
    write(blocks, 1)
    folder = files(memory)[0].parent
    folder.rename(memory / "elsewhere")
    folder.touch()  # root may write into any folder, but not into a file
    with caplog.at_level(logging.WARNING):
        assert write(blocks, 2) == 0 and write(blocks, 2) == 0
    assert len(caplog.records) == 1 and "computed twice" in caplog.text
    blocks.clear()
    folder.unlink()
    (memory / "elsewhere").rename(folder)
    assert read(blocks, 1) and write(blocks, 2) == 1


def peer(ready: Ready, root: str, part: str) -> None:
    """Gives, or takes and looks at, one block after the other for ever."""
    blocks = store(Path(root), most=60_000, lease_s=0.3)
    ready()
    for n in itertools.count():
        i = n % 40
        if part == "giver":
            write(blocks, i, i + 1, i + 2)
        elif read(blocks, i) and n % 3:
            blocks.take([key(i)])
        assert blocks.n_errors == 0, "a block with a name was not whole"


@pytest.mark.parametrize(("living", "dying"), [("giver", "taker"), ("taker", "giver")])
def test_killed_at_any_moment_again_and_again_one_side_never_harms_the_other(living: str, dying: str, memory: Path) -> None:
    """Hundreds of times for each side, while the other one goes on; it looks at every byte that it reads."""
    rng = random.Random(3)
    n_partial = n_whole = 0
    with forks_of("tests.engine.kv.tiers.test_shared:peer") as forks:
        survivor = forks.start(str(memory), living)
        for _ in range(300):
            victim = forks.start(str(memory), dying)
            time.sleep(rng.random() * 0.01)
            forks.kill(victim)
            n_partial += len(list(memory.glob("*/*.partial")))
            n_whole += len(list(memory.glob("*/*.kv")))
            assert forks.lives(survivor), "a block came back wrong"
            assert used_bytes(memory) <= 60_000 + size(2)
    assert n_whole > 50
    if dying == "giver":
        assert n_partial > 3, "it was never killed in the middle of a block"
    time.sleep(0.35)
    assert store(memory, lease_s=0.3).sweep() == 0 and files(memory) == []
