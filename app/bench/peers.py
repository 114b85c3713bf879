"""The servers that can be compared: how each is started, and when it is ready."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

from app.settings import OPTIONS
from engine.errors import ConfigError

STREAMS = 16
"""Most answers that a workload asks for together."""
STREAM_TOKENS = 2560
"""Longest prompt and answer of a workload, with room for templates and for words that have more tokens than the average."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server. {model}, {port}, {threads} and {home} (a folder of its own) stand for what a run puts there."""

    name: str
    command: tuple[str, ...]
    ready_path: str = "/health"
    """Gives status 200 once the model is loaded."""
    env: dict[str, str] = field(default_factory=dict)
    version_arguments: tuple[str, ...] = ()
    """Make the program print its version and end."""

    def filled(self, *, model: Path, port: int, threads: int, home: Path) -> tuple[list[str], dict[str, str]]:
        """(command, environment) of one run. None of the person's own settings of Pagewell reach it."""
        values = {"model": str(model), "port": str(port), "threads": str(threads), "home": str(home)}
        settings = {option.env for option in OPTIONS} | {"PAGEWELL_CONFIG"}
        env = {name: value for name, value in os.environ.items() if name not in settings}
        env |= {name: _fill(value, values) for name, value in self.env.items()}
        return [_fill(word, values) for word in self.command], env

    def version(self) -> str | None:
        """First lines of what the program says about itself; None where it says nothing, or cannot be run."""
        if not self.version_arguments:
            return None
        command = [self.command[0], *self.version_arguments]
        try:
            result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return "\n".join((result.stdout + result.stderr).strip().splitlines()[:4])


def pagewell() -> Peer:
    """This Pagewell, with its defaults."""
    command = [sys.executable, "-m", "app.cli", "serve", "{model}", "--port", "{port}", "--threads", "{threads}"]
    return Peer("pagewell", tuple(command), "/health/ready", {"OMP_NUM_THREADS": "{threads}", "PAGEWELL_HOME": "{home}"})


LLAMA_CPP = Peer(
    "llama.cpp",
    (
        *("llama-server", "--model", "{model}", "--port", "{port}", "--host", "127.0.0.1"),
        *("--threads", "{threads}", "--threads-batch", "{threads}"),
        *("--parallel", str(STREAMS), "--ctx-size", str(STREAMS * STREAM_TOKENS), "--cont-batching"),
        *("--flash-attn", "auto", "--no-webui"),
    ),
    version_arguments=("--version",),
)
OPENVINO = Peer(
    "openvino",
    ("python", str(Path(__file__).with_name("openvino_server.py")), "{model}", "{port}", "{threads}"),
    ready_path="/v1/models",
    version_arguments=("-c", "import openvino_genai; print('openvino-genai', openvino_genai.__version__)"),
)
"""Its program is an interpreter that has openvino-genai."""

KNOWN = {peer.name: peer for peer in (LLAMA_CPP, OPENVINO)}
"""Peers that need only the path of their program."""


def found() -> list[Peer]:
    """The known peers whose programs are on PATH, where an interpreter tells nothing."""
    return [peer for peer in (LLAMA_CPP,) if shutil.which(peer.command[0])]


def parse(text: str) -> Peer:
    """NAME of a known peer, NAME=PROGRAM of one, or NAME=COMMAND of any server, in which {port} and mostly {model} stand.

    Raises ConfigError.
    """
    name, _, given = text.partition("=")
    if not re.fullmatch(r"[\w.-]+", name) or name == "pagewell":
        raise ConfigError(f"{name!r} is no name for a peer.", "Use letters, digits, dots and dashes; pagewell is taken.")
    if "{port}" in given:
        try:
            program, *arguments = shlex.split(given)
        except ValueError as error:
            raise ConfigError(f"{given} is no command: {error}.", "Close each quotation mark.") from error
        return Peer(name, (_found(program, name), *arguments))
    if name not in KNOWN:
        why = f"{given} has no {{port}} to listen on" if given else f"{name} is no peer that is known ({', '.join(KNOWN)})"
        how = f"{name}={given or 'PROGRAM'} --model {{model}} --port {{port}} --threads {{threads}}"
        raise ConfigError(f"{why}.", f"Say how it is started: --peer '{how}'.")
    return replace(KNOWN[name], command=(_found(given or KNOWN[name].command[0], name), *KNOWN[name].command[1:]))


def _found(program: str, name: str) -> str:
    where = shutil.which(program)
    if where is None:
        raise ConfigError(
            f"{program}, which runs {name}, is not there or is no program.",
            f"Say where it is: --peer {name}=/path/to/{Path(program).name}.",
        )
    return where


def _fill(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(model|port|threads|home)\}", lambda match: values[match[1]], text)
