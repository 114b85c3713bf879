"""A folder in shared memory: nobody else's, gone with the last process that uses it, however the others ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.kv.tiers.shared_folder import LOCK, SharedFolder

if sys.platform != "win32":
    import fcntl
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
ROOT = Path(__file__).parents[3]
KIND = "0123456789abcdef"
USER = """
import sys, time
from pathlib import Path
from engine.kv.tiers.shared_folder import SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
(folder.kind("0123456789abcdef") / "x.kv").touch()
print("ready", flush=True)
time.sleep(60)
"""


def left_in(base: Path) -> list[str]:
    return sorted(str(path.relative_to(base)) for path in base.rglob("*"))


@pytest.fixture
def killed(memory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that uses the folder, to be killed by the test."""
    user = subprocess.Popen([sys.executable, "-c", USER, str(memory)], cwd=ROOT, stdout=subprocess.PIPE)
    assert user.stdout is not None and user.stdout.readline() == b"ready\n"
    yield user
    user.kill()
    user.communicate()


def test_it_is_there_while_somebody_uses_it_and_gone_with_the_last_one(memory: Path) -> None:
    first, second = SharedFolder(memory), SharedFolder(memory)
    assert first.path == second.path and first.path.stat().st_mode & 0o777 == 0o700
    for name in ("a.kv", "b.partial", "c.sock"):
        (first.kind(KIND) / name).touch()
    assert first.kind(KIND).stat().st_mode & 0o777 == 0o700 and (first.path / LOCK).stat().st_mode & 0o777 == 0o600
    first.release()
    assert len(list(second.kind(KIND).iterdir())) == 3
    second.release()
    second.release()
    assert left_in(memory) == []


def test_what_the_dead_left_is_removed_by_who_comes_next_unless_somebody_lives(
    memory: Path, killed: subprocess.Popen[bytes]
) -> None:
    living = SharedFolder(memory)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    third = SharedFolder(memory)
    assert (third.kind(KIND) / "x.kv").exists()
    living.release()
    third.release()
    assert left_in(memory) == []


def test_what_was_left_when_all_died_is_removed(memory: Path, killed: subprocess.Popen[bytes]) -> None:
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert any(name.endswith("x.kv") for name in left_in(memory))
    after = SharedFolder(memory)
    assert not any(name.endswith("x.kv") for name in left_in(memory))
    after.release()
    assert left_in(memory) == []


def test_who_fails_to_empty_it_does_not_keep_the_others_waiting(memory: Path) -> None:
    in_the_way = memory / f"pagewell-{os.getuid()}" / KIND / "x.kv"
    in_the_way.mkdir(parents=True)
    in_the_way.parents[1].chmod(0o700)
    with pytest.raises(ConfigError, match="cannot be used"):
        SharedFolder(memory)
    in_the_way.rmdir()
    entered: list[SharedFolder] = []
    thread = threading.Thread(target=lambda: entered.append(SharedFolder(memory)), daemon=True)
    thread.start()
    thread.join(10)
    assert entered, "somebody waits for ever"
    entered[0].release()
    assert left_in(memory) == []


def test_many_come_and_leave_at_once_and_nobody_loses_what_is_used(memory: Path) -> None:
    lost: list[int] = []

    def use(i: int) -> None:
        for n in range(60):
            folder = SharedFolder(memory)
            mine = folder.kind(KIND) / f"{i}-{n}.kv"
            mine.touch()
            if not mine.exists():
                lost.append(i)
            folder.release()

    threads = [threading.Thread(target=use, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for ever"
    assert lost == [] and left_in(memory) == []


@pytest.mark.parametrize("moment", ["before it looks for others", "before it joins them"])
def test_who_comes_as_the_last_one_leaves_joins_those_who_come_after(
    moment: str, memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[SharedFolder] = []
    flock, kind = fcntl.flock, fcntl.LOCK_SH if moment == "before it joins them" else fcntl.LOCK_EX | fcntl.LOCK_NB

    def meanwhile(file: int, operation: int) -> None:
        if operation == kind and not others:
            monkeypatch.setattr(fcntl, "flock", flock)
            shutil.rmtree(memory / f"pagewell-{os.getuid()}")
            others.append(SharedFolder(memory))
            (others[0].kind(KIND) / "x.kv").touch()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    folder = SharedFolder(memory)
    assert (folder.kind(KIND) / "x.kv").exists()
    others[0].release()
    assert (folder.kind(KIND) / "x.kv").exists(), "it is not known to be there"
    folder.release()
    assert left_in(memory) == []


def test_who_stayed_when_a_person_removed_the_folder_leaves_that_of_those_who_came_after_alone(memory: Path) -> None:
    first = SharedFolder(memory)
    shutil.rmtree(first.path)
    second = SharedFolder(memory)
    (second.kind(KIND) / "x.kv").touch()
    first.release()
    assert (second.kind(KIND) / "x.kv").exists()
    second.release()
    assert left_in(memory) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_of_two_that_leave_at_once_one_is_the_last(moment: str, memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one leaves right before or after the first has looked whether it is alone, and has not gone yet."""
    first, second = SharedFolder(memory), SharedFolder(memory)
    flock = fcntl.flock

    def meanwhile(file: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        if moment == "before":
            second.release()
        try:
            flock(file, operation)
        finally:
            if moment == "after":
                second.release()

    monkeypatch.setattr(fcntl, "flock", meanwhile)
    first.release()
    assert left_in(memory) == []


def test_only_what_is_its_own_is_removed(memory: Path) -> None:
    folder = SharedFolder(memory)
    letter = folder.path / "letter.txt"
    photo = folder.kind(KIND) / "photo.jpg"
    (memory / "thesis.kv").touch()
    for path in (letter, photo):
        path.touch()
    folder.release()
    assert letter.exists() and photo.exists() and (memory / "thesis.kv").exists()


@pytest.mark.parametrize("wrong", ["open to others", "a link", "a file", "too long"])
def test_a_folder_that_is_not_ours_alone_is_refused(wrong: str, memory: Path) -> None:
    base = memory / ("x" * 80 if wrong == "too long" else "base")
    base.mkdir()
    ours = base / f"pagewell-{os.getuid()}"
    if wrong == "open to others":
        ours.mkdir(mode=0o755)
        ours.chmod(0o755)
    elif wrong == "a link":
        (base / "elsewhere").mkdir(mode=0o700)
        ours.symlink_to(base / "elsewhere")
    elif wrong == "a file":
        ours.touch()
    with pytest.raises(ConfigError) as refused:
        SharedFolder(base)
    assert str(ours) in refused.value.message and "--kv-shared-folder" in refused.value.hint


def test_a_folder_that_cannot_be_made_is_named(memory: Path) -> None:
    (memory / "base").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        SharedFolder(memory / "base")
