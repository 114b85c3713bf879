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

from engine.kv.tiers.disk import PARTIAL, SUFFIX, DiskStore, _warn_of_small_limit
from engine.kv.tiers.segment import FORMAT, MAGIC, VERSION

PAYLOAD = 4000
"""Bytes of a payload. Its pieces, and other payloads, have other sizes."""
ROOT = Path(__file__).parents[3]


def key(i: int) -> bytes:
    return hashlib.sha256(b"key %d" % i).digest()


def payload(i: int, n_bytes: int = PAYLOAD) -> list[memoryview]:
    """Block i's, in two pieces."""
    stream = random.Random(i).randbytes(n_bytes)
    return [memoryview(stream[: n_bytes * 3 // 4]), memoryview(stream[n_bytes * 3 // 4 :])]


def store(folder: Path, kind: str = "a", most: int = 1 << 30) -> DiskStore:
    return DiskStore(folder, kind, most)


def read(disk: DiskStore, i: int, n_bytes: int = PAYLOAD) -> bool:
    """Whether block i comes back; what comes back has to be it."""
    expected = payload(i, n_bytes)
    buffers = [memoryview(bytearray(len(piece))) for piece in expected]
    if not disk.read(key(i), buffers):
        return False
    assert buffers == expected, "a block came back as something else"
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
        assert reader.n_blocks == 4 and reader.n_damaged == 0
    assert len(segments(tmp_path)) == 2 and disk.n_bytes == sum(path.stat().st_size for path in segments(tmp_path))


def test_payloads_of_several_sizes_share_a_segment(tmp_path: Path) -> None:
    sizes = {1: PAYLOAD, 2: 1, 3: 100_000, 4: PAYLOAD - 1}
    disk = store(tmp_path)
    assert disk.write([(key(i), payload(i, n_bytes)) for i, n_bytes in sizes.items()]) and len(segments(tmp_path)) == 1
    for reader in (disk, store(tmp_path)):
        assert all(read(reader, i, n_bytes) for i, n_bytes in sizes.items())
        assert not read(reader, 1, PAYLOAD - 1) and not read(reader, 2, PAYLOAD), "buffers of another size are a miss"
        assert read(reader, 1) and reader.n_damaged == 0, "and nothing more than that"


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


def test_a_segment_larger_than_the_limit_is_not_written_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_small_limit.cache_clear()
    disk = store(tmp_path, most=PAYLOAD)
    for i in (1, 2):
        assert not write(disk, i) and not list(tmp_path.glob("*/*")) and not read(disk, i)
    (record,) = caplog.records
    assert record.levelname == "WARNING" and "--kv-disk-space" in record.getMessage() and str(PAYLOAD) in record.getMessage()


@pytest.mark.parametrize("error", [PermissionError, FileNotFoundError])
def test_what_was_read_is_good_even_where_it_cannot_be_marked_as_used(
    error: type[OSError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = store(tmp_path)
    write(disk, 1, 2)
    refused: list[Path] = []

    def refuse(path: Path) -> None:
        refused.append(path)
        raise error

    monkeypatch.setattr(os, "utime", refuse)
    assert read(disk, 1) and read(disk, 1) and read(disk, 2)
    assert refused == segments(tmp_path) and disk.n_damaged == 0 and disk.n_blocks == 2


def test_a_damaged_payload_is_a_miss_and_only_that_one(tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, 1, 2)
    (path,) = segments(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[4096 + 5] ^= 1
    path.write_bytes(raw)
    for reader in (disk, store(tmp_path)):
        assert not read(reader, 1) and read(reader, 2) and reader.n_damaged == 1 and reader.read_bytes == PAYLOAD
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
    assert after.n_blocks == 0 and after.n_damaged == 1 and not segments(tmp_path) and not read(after, 1)
    assert write(after, 1) and read(after, 1)


def test_a_segment_that_somebody_removed_is_a_miss(tmp_path: Path) -> None:
    disk = store(tmp_path)
    write(disk, 1, 2)
    segments(tmp_path)[0].unlink()
    assert not read(disk, 1) and key(2) not in disk and disk.n_damaged == 0
    assert write(disk, 1) and read(disk, 1)
    segments(tmp_path)[0].unlink()
    assert write(disk, 3) and key(1) not in disk, "a write sees it, too"


@pytest.mark.parametrize("kind", ["a", "another"])
def test_what_earlier_versions_wrote_is_removed_and_later_ones_is_left_alone(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for i in range(3):
        write(store(tmp_path, kind), i)
    for path, version in zip(segments(tmp_path), (0, VERSION - 1, VERSION + 1), strict=True):
        path.write_bytes(FORMAT + bytes([version]) + path.read_bytes()[len(MAGIC) :])
    caplog.clear()
    after = store(tmp_path)
    assert len(segments(tmp_path)) == 1 and after.n_blocks == 0 and after.n_damaged == 0
    assert [record.levelname for record in caplog.records] == ["INFO"] and "2 files that an earlier version" in caplog.text


def test_what_others_wrote_meanwhile_is_known_from_the_next_write_on_and_counts(tmp_path: Path) -> None:
    disk, other = store(tmp_path, most=3 * (4096 + PAYLOAD)), store(tmp_path)
    write(other, 1, 2)
    assert not read(disk, 1) and write(disk, 3) and read(disk, 1) and read(disk, 2)
    for i in range(4, 20):
        write(other, i)
    assert write(disk, 20) and read(disk, 20)
    assert sum(path.stat().st_size for path in segments(tmp_path)) == disk.n_bytes <= disk.max_bytes
    assert [i for i in range(20) if key(i) in disk] == [18, 19], "what made room for it is forgotten"


def test_what_others_are_writing_counts_and_is_not_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = store(tmp_path, most=2 * (4096 + PAYLOAD))
    write(disk, 1)
    began = round(psutil.Process().create_time())
    partial = tmp_path / "a" / f"{os.getpid()}-{began}-other-1{PARTIAL}"
    with partial.open("wb") as file:
        file.truncate(4096 + PAYLOAD)
    assert write(disk, 2) and read(disk, 2) and not read(disk, 1), "one of the two had to make room"
    with partial.open("r+b") as file:
        file.truncate(disk.max_bytes)
    assert not write(disk, 3) and "others are writing" in caplog.text and partial.exists()
    assert not list(tmp_path.glob(f"*/{disk._writer}*{PARTIAL}"))


def test_a_disk_that_takes_nothing_loses_nothing_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = store(tmp_path)
    write(disk, 1)
    (tmp_path / "a").rename(tmp_path / "elsewhere")
    (tmp_path / "a").touch()  # root may write into any folder, but not into a file
    assert not write(disk, 2) and "could not be written" in caplog.text
    (tmp_path / "a").unlink()
    (tmp_path / "elsewhere").rename(tmp_path / "a")
    assert read(disk, 1) and not read(disk, 2)


def test_nobody_else_may_look_into_the_folder_or_a_file(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert write(store(tmp_path / "kv"), 1)
    finally:
        os.umask(before)
    assert [(tmp_path / "kv" / name).stat().st_mode & 0o777 for name in ("", "a")] == [0o700, 0o700]
    assert [path.stat().st_mode & 0o777 for path in segments(tmp_path / "kv")] == [0o600]


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


MOST = 100 * 4096
WRITER = f"""
import sys
from pathlib import Path
from tests.engine.kv.tiers.test_disk import store, write
disk = store(Path(sys.argv[1]), sys.argv[3], most={MOST})
first = int(sys.argv[2])
print("ready", flush=True)
for i in range(first, first + 10_000, 4):
    write(disk, *range(i, i + 4))
"""


def writer(folder: Path, first: int, kind: str = "a") -> subprocess.Popen:
    """A process that writes four blocks after the other."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, folder, str(first), kind], cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"ready\n"
    return process


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="processes cannot be stopped and looked at here")
def test_several_writers_keep_one_limit(tmp_path: Path) -> None:
    writers = [writer(tmp_path, i * 10_000, kind) for i, kind in enumerate("aab")]
    deadline, n_full = time.monotonic() + 60, 0
    try:
        while n_full < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
            for process in writers:
                process.send_signal(signal.SIGSTOP)
                os.waitpid(process.pid, os.WUNTRACED)
            sizes = [path.stat().st_size for path in segments(tmp_path)]
            n_full += sum(sizes) > MOST * 0.8
            assert sum(sizes) <= MOST + len(writers) * max(sizes, default=0), (
                "each may have missed one that got its name just then"
            )
            for process in writers:
                process.send_signal(signal.SIGCONT)
    finally:
        for process in writers:
            process.kill()
            process.communicate()
    assert n_full == 20, "nobody had to make room"
    disk = store(tmp_path, most=MOST)
    assert disk.n_damaged == 0 and disk.n_bytes <= MOST


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no kill -9 here")
def test_killed_at_any_moment_a_writer_leaves_only_whole_blocks(tmp_path: Path) -> None:
    """Hundreds of times, at moments spread over its writes; the survivors share one folder, in which room is made too."""
    rng = random.Random(5)
    n_partial = n_found = 0
    for round_ in range(200):
        first = round_ * 10_000
        process = writer(tmp_path, first)
        time.sleep(rng.random() * 0.02)
        process.kill()
        process.communicate()
        n_partial += len(list((tmp_path / "a").glob(f"*{PARTIAL}")))
        disk = store(tmp_path, most=MOST)
        assert disk.n_damaged == 0, "a file with a name was not whole"
        found = [read(disk, i) for i in range(first, first + 200)]
        n_found += sum(found)
        assert not list((tmp_path / "a").glob(f"*{PARTIAL}")) and disk.n_bytes <= MOST
    assert n_partial > 10, "it was never killed in the middle of a write"
    assert n_found > 1000
