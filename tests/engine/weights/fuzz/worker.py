"""Runs trials in a process of its own, with limits, so that a crash, a hang and a memory blow-up are seen for what they are.

    python -m tests.engine.weights.fuzz.worker SEED_FILE_OR_FOLDER OTHER FIRST N SCRATCH

One line of JSON a trial on standard output, first {"case", "what"}, then {"case", "result"} or {"case", "fault"}. A trial that is
seen to fail can be run alone by giving its number and 1.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import json
import logging
import mmap
import random
import resource
import shutil
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

from engine.weights.gguf import file as gguf
from tests.engine.weights.fuzz import mutate_folder, mutate_gguf
from tests.engine.weights.fuzz.trial import attempt

ADDRESS_SPACE = 1 << 30
"""Bytes beyond what the process has when it begins; no trial needs a tenth of it."""
HANG_S = 60
_PROT_NONE, _PROT_READ = 0, 1
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedMap(mmap.mmap):
    """In the place of a mapped file: nobody may write to it, nor touch what comes after its last page.

    Files whose size is a multiple of a page's, which half of the trials have, are guarded to their last byte.
    """

    def __new__(cls, fileno: int, length: int, access: int) -> GuardedMap:
        with open(fileno, "rb", closefd=False) as file:
            raw = file.read()
        if not raw:
            raise ValueError("cannot mmap an empty file")
        n_guarded = -(-len(raw) // mmap.PAGESIZE) * mmap.PAGESIZE
        self = super().__new__(cls, -1, n_guarded + mmap.PAGESIZE)
        self[: len(raw)] = raw
        self.n_bytes = len(raw)
        address = address_of(self)
        _protect(address, n_guarded, _PROT_READ)
        _protect(address + n_guarded, mmap.PAGESIZE, _PROT_NONE)
        return self

    def __len__(self) -> int:
        return self.n_bytes


def address_of(mapped: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapped))


def _protect(address: int, n_bytes: int, protection: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(n_bytes), protection):
        raise OSError(ctypes.get_errno(), "mprotect")


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


def run(seed: Path, other: Path, case: int, scratch: Path) -> None:
    # A text as the seed of Random is hashed in the same way by every Python.
    rng = random.Random(f"{seed.name} {case}")
    target = scratch / seed.name
    if seed.is_dir():
        files, what = mutate_folder.mutated(mutate_folder.read(seed), rng)
        mutate_folder.write(files, target)
    else:
        raw, what = mutate_gguf.mutated(seed.read_bytes(), rng, other.read_bytes())
        target.write_bytes(raw)
    say(case=case, what=what)
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        say(case=case, result=attempt(target))
    except BaseException:
        say(case=case, fault=traceback.format_exc())
    faulthandler.cancel_dump_traceback_later()
    gc.collect(0)
    shutil.rmtree(target) if target.is_dir() else target.unlink()


def main(seed: str, other: str, first: str, n: str, scratch: str) -> None:
    logging.disable(logging.CRITICAL)
    faulthandler.enable()
    gguf.mmap = SimpleNamespace(mmap=GuardedMap, ACCESS_READ=mmap.ACCESS_READ)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (taken + ADDRESS_SPACE, resource.RLIM_INFINITY))
    for case in range(int(first), int(first) + int(n)):
        run(Path(seed), Path(other), case, Path(scratch))


if __name__ == "__main__":
    main(*sys.argv[1:])
