"""Blocks on disk: what is written comes back or is missed, never anything else, whoever dies or damages a file."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from engine.kv.disk import PARTIAL, SUFFIX, DiskStore

SIZES = (3000, 1000)
"""Bytes of a payload's pieces."""
PAYLOAD = sum(SIZES)
ROOT = Path(__file__).parents[3]


def key(i: int) -> bytes:
    return hashlib.sha256(b"key %d" % i).digest()


def payload(i: int) -> list[memoryview]:
    stream = random.Random(i).randbytes(PAYLOAD)
    return [memoryview(stream[: SIZES[0]]), memoryview(stream[SIZES[0] :])]


def store(folder: Path, kind: str = "a", most: int = 1 << 30) -> DiskStore:
    return DiskStore(folder, kind, PAYLOAD, most)


def read(disk: DiskStore, i: int) -> bool:
    """Whether block i comes back; what comes back has to be it."""
    buffers = [memoryview(bytearray(size)) for size in SIZES]
    if not disk.read(key(i), buffers):
        return False
    assert buffers == payload(i), "a block came back as something else"
    return True


def write(disk: DiskStore, *numbers: int) -> bool:
    return disk.write([(key(i), payload(i)) for i in numbers])


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*/*{SUFFIX}"))


def test_what_was_written_comes_back_now_and_after_a_restart(tmp_path: Path) -> None:
    disk = store(tmp_path)
    assert write(disk, 1, 2, 3) and write(disk, 3, 4)
    for reader in (disk, store(tmp_path)):
        assert [read(reader, i) for i in range(6)] == [False, True, True, True, True, False]
        assert reader.n_blocks == 4 and reader.n_errors == 0
    assert len(segments(tmp_path)) == 2 and disk.n_bytes == sum(path.stat().st_size for path in segments(tmp_path))


def test_others_of_another_kind_are_not_read_but_share_the_limit(tmp_path: Path) -> None:
    write(store(tmp_path, "a"), 1, 2)
    other = store(tmp_path, "b", most=2 * 4096 + 2 * PAYLOAD)
    assert not read(other, 1) and other.n_blocks == 0
    assert write(other, 3) and len(segments(tmp_path)) == 1, "the older segment made room"
    assert read(other, 3) and not read(store(tmp_path, "a"), 1)


def test_the_segment_that_was_used_least_recently_makes_room(tmp_path: Path) -> None:
    disk = store(tmp_path, most=2 * (4096 + PAYLOAD))
    for i in (1, 2):
        write(disk, i)
        for path in segments(tmp_path):
            os.utime(path, (i, i))
    assert read(disk, 1)
    write(disk, 3)
    assert [read(disk, i) for i in (1, 2, 3)] == [True, False, True]
    assert disk.n_bytes <= disk.max_bytes


def test_a_segment_larger_than_the_limit_is_not_written(tmp_path: Path) -> None:
    disk = store(tmp_path, most=PAYLOAD)
    assert not write(disk, 1) and not segments(tmp_path) and not read(disk, 1)


def test_a_damaged_payload_is_a_miss_and_only_that_one(tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, 1, 2)
    (path,) = segments(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[4096 + 5] ^= 1
    path.write_bytes(raw)
    for reader in (disk, store(tmp_path)):
        assert not read(reader, 1) and read(reader, 2) and reader.n_errors == 1
        assert key(1) not in reader


@pytest.mark.parametrize("damage", ["header", "cut in a header", "cut in a payload", "longer", "empty", "foreign", "many"])
def test_a_damaged_segment_is_removed(damage: str, tmp_path: Path) -> None:
    write(store(tmp_path), 1, 2)
    (path,) = segments(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(
        {
            "header": raw[:30] + bytes([raw[30] ^ 1]) + raw[31:],
            "cut in a header": raw[:100],
            "cut in a payload": raw[:-1],
            "longer": raw + b"x",
            "empty": b"",
            "foreign": b"GGUF" * 5000,
            "many": raw[:8] + b"\xff" * 4 + raw[12:],
        }[damage]
    )
    after = store(tmp_path)
    assert after.n_blocks == 0 and after.n_errors == 1 and not segments(tmp_path) and not read(after, 1)
    assert write(after, 1) and read(after, 1)


def test_a_segment_that_somebody_removed_is_a_miss(tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, 1)
    segments(tmp_path)[0].unlink()
    assert not read(disk, 1) and write(disk, 1) and read(disk, 1)


def test_a_disk_that_takes_nothing_loses_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = store(tmp_path)
    write(disk, 1)
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    (tmp_path / "a").touch()  # root may write into any folder, but not into a file
    assert not write(disk, 2) and "could not be written" in caplog.text
    (tmp_path / "a").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    assert read(disk, 1) and not read(disk, 2)


def test_nobody_else_may_look_into_the_folder(tmp_path: Path) -> None:
    store(tmp_path / "kv")
    assert [(tmp_path / "kv" / name).stat().st_mode & 0o777 for name in ("", "a")] == [0o700, 0o700]


def test_what_a_dead_process_left_half_written_is_removed_and_a_living_ones_is_not(tmp_path: Path) -> None:
    store(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    began = round(psutil.Process().create_time())
    names = (f"{dead.pid}-{began}-x-1", f"{os.getpid()}-{began - 9}-x-1", f"{os.getpid()}-{began}-x-1", "x")
    left = [tmp_path / "a" / (name + PARTIAL) for name in names]
    for path in left:
        path.touch()
    store(tmp_path)
    assert [path.exists() for path in left] == [False, False, True, False], "the second is of an earlier process of this number"


WRITER = """
import sys
from pathlib import Path
from tests.engine.kv.test_disk import store, write
disk = store(Path(sys.argv[1]), most=100 * 4096)
first = int(sys.argv[2])
print("ready", flush=True)
for i in range(first, first + 10_000, 4):
    write(disk, *range(i, i + 4))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
def test_killed_at_any_moment_a_writer_leaves_only_whole_blocks(tmp_path: Path) -> None:
    """Hundreds of times, at moments spread over its writes; the survivors share one folder, in which room is made too."""
    rng = random.Random(5)
    n_partial = n_found = 0
    for round_ in range(200):
        first = round_ * 10_000
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(first)], cwd=ROOT, stdout=subprocess.PIPE)
        assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.02)
        writer.kill()
        writer.communicate()
        n_partial += len(list((tmp_path / "a").glob(f"*{PARTIAL}")))
        disk = store(tmp_path, most=100 * 4096)
        assert disk.n_errors == 0, "a file with a name was not whole"
        found = [read(disk, i) for i in range(first, first + 200)]
        n_found += sum(found)
        assert not list((tmp_path / "a").glob(f"*{PARTIAL}")) and disk.n_bytes <= 100 * 4096
    assert n_partial > 10, "it was never killed in the middle of a write"
    assert n_found > 1000
