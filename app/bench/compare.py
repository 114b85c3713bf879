"""Servers against each other: in each round all are started, and each workload is put to one after the other.

Between its turns a server is held still, so two figures that make a ratio lie seconds apart, not minutes: machines that share
their processor or its memory with others change their speed within minutes.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from app.bench import load as client
from app.bench.load import Load, Measure
from app.bench.others import Others, wait_quiet, warning
from app.bench.peers import Peer
from app.bench.process import START_S, Server, end
from app.bench.workloads import MEMORY, START, Workload
from engine.errors import PagewellError

WARM_UP = Load(1, 1, prompt_words=64, prefix_words=0, output_tokens=8)
Round = dict[str, dict[str, dict[str, Any]]]
"""Server -> workload -> figures; what failed has no figures."""


@dataclass(slots=True)
class Comparison:
    """What is compared on one model, and what came out so far."""

    model: Path
    peers: list[Peer]
    workloads: list[Workload]
    threads: int
    n_rounds: int
    folder: Path
    """For logs and for what the servers keep; a folder of its own for each round."""
    patience_s: float = 0.0
    """Longest that each workload waits for other programs to be quiet."""
    say: Callable[[str], None] = lambda _: None
    seed: str = field(default_factory=lambda: secrets.token_hex(4))
    """Other in each comparison, so that nothing a server kept from an earlier one helps it."""
    rounds: list[Round] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    commands: dict[str, list[str]] = field(default_factory=dict)
    measure: Measure | None = None
    """Taken from the first server that answers and used for all: they get the same prompts."""

    def run(self, after_round: Callable[[], None]) -> None:
        """All rounds. What fails is noted and left out; KeyboardInterrupt ends the servers before it goes on its way."""
        for index in range(self.n_rounds):
            began = time.monotonic()
            self._round(index)
            after_round()
            left_s = (time.monotonic() - began) * (self.n_rounds - index - 1)
            self.say(f"round {index + 1} of {self.n_rounds} done" + (f", about {left_s / 60:.0f} min left" if left_s else ""))

    def guess_s(self) -> float:
        """A guess at how long all of it takes."""
        n_bytes = self.model.stat().st_size if self.model.is_file() else sum(p.stat().st_size for p in self.model.iterdir())
        one = sum(workload.guess_s(n_bytes, self.threads) for workload in self.workloads)
        return self.n_rounds * len(self.peers) * (one + 5)

    def _round(self, index: int) -> None:
        figures: Round = {peer.name: {} for peer in self.peers}
        self.rounds.append(figures)
        folder = self.folder / f"round-{index + 1}"
        running: list[Server] = []
        try:
            for peer in self.peers:
                self._start(peer, folder, running, figures, index)
            for workload in self.workloads:
                for server in _turns(running, index):
                    if self.patience_s and not wait_quiet(self.patience_s):
                        self.say("Other programs keep the machine busy; going on nevertheless.")
                    self._put(workload, server, running, figures, index)
            for server in running:
                figures[server.peer.name][MEMORY] = {"peak_bytes": server.peak_bytes()}
        finally:
            end(running)

    def _start(self, peer: Peer, folder: Path, running: list[Server], figures: Round, index: int) -> None:
        """Start a server, wait until it answers, warm it up and hold it."""
        try:
            server = Server(peer, self.model, self.threads, folder)
            running.append(server)
            others = Others([server.process.pid])
            self.commands[peer.name] = server.command
            ready_s = server.wait_ready()
            seed = f"{self.seed}/{index}"
            measure = asyncio.run(self._first_answers(server, seed))
            self.measure = self.measure or measure
        except PagewellError as error:
            self._note(peer.name, START, index, error)
            end(server for server in running if server.peer is peer)
            running[:] = [server for server in running if server.peer is not peer]
            return
        figures[peer.name][START] = {
            "ready_s": ready_s,
            "first_answer_s": server.first_answer_s,
            "others_cores": self._disturbed_by(others),
        }
        self.say(f"{peer.name}: ready after {ready_s:.1f} s")
        server.pause()

    async def _first_answers(self, server: Server, seed: str) -> Measure:
        server.endpoint = replace(server.endpoint, model=await server.served_name())
        first = replace(WARM_UP, prompt_words=8, output_tokens=1, seed=f"{seed}/first")
        while ((await client.run(server.endpoint, first))[0].error or "").startswith("503"):
            server.check(START_S)  # some servers answer on their path before the model is loaded
            await asyncio.sleep(0.05)
        server.first_answer_s = time.perf_counter() - server.began
        measure = await client.measure(server.endpoint, seed)
        await client.warm_up(server.endpoint, replace(WARM_UP, seed=seed), 1)
        return measure

    def _put(self, workload: Workload, server: Server, running: list[Server], figures: Round, index: int) -> None:
        """One workload to one server, which alone runs meanwhile."""
        assert self.measure is not None
        name = server.peer.name
        server.resume()
        others = Others([server.process.pid])
        began, client = time.perf_counter(), time.process_time()
        try:
            result = asyncio.run(workload.run(server.endpoint, self.measure, f"{self.seed}/{index}"))
            server.check()
        except PagewellError as error:
            self._note(name, workload.name, index, error)
            if server.has_ended(within_s=1.0):
                end([server])
                running.remove(server)
                return
        else:
            client_cores = (time.process_time() - client) / (time.perf_counter() - began)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in result.items() if isinstance(value, float))
            self.say(f"{name}: {workload.name}: {shown}")
            cores = {"others_cores": self._disturbed_by(others), "client_cores": client_cores}
            figures[name][workload.name] = result | cores
        server.pause()

    def _disturbed_by(self, others: Others) -> float:
        """Cores that other programs took; a person who should know is told."""
        cores = others.cores()
        if (line := warning(cores)) is not None:
            self.say(line)
        return cores

    def _note(self, name: str, what: str, index: int, error: PagewellError) -> None:
        self.errors.append(f"{name}, {what}, round {index + 1}: {error.message}")
        self.say(self.errors[-1])

    def result(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        return {
            "model": self.model.name,
            "seed": self.seed,
            "words": asdict(self.measure) if self.measure else None,
            "commands": self.commands,
            "errors": self.errors,
            "rounds": self.rounds,
        }


def _turns(servers: list[Server], index: int) -> list[Server]:
    """In each round another one is first: a processor may give its best speed to the one that finds it cool."""
    first = index % max(1, len(servers))
    return servers[first:] + servers[:first]
