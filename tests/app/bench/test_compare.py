"""A comparison of small servers: who is started and ended when, what is kept of the ones that fail, and the ratios."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from app.bench import peers as known
from app.bench import ratios
from app.bench.compare import Comparison
from app.bench.load import Measure
from app.bench.peers import Peer
from app.bench.process import Server, ServerFailed, end
from app.bench.wire import Endpoint
from app.bench.workloads import BY_NAME, MEMORY, START, WORKLOADS, WorkloadFailed
from app.cli import cli
from engine.errors import ConfigError, PagewellError
from tests import models
from tests.app.bench.small_server import running

PROGRAM = str(Path(__file__).with_name("small_peer.py"))


def peer(name: str, how: str = "") -> Peer:
    return Peer(name, (sys.executable, PROGRAM, "{port}", *([how] if how else [])))


def wait_gone(process: psutil.Process) -> None:
    """A killed process goes a moment later; who does not reap it leaves a zombie."""
    deadline = time.monotonic() + 10
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def left(folder: Path) -> list[psutil.Process]:
    """Servers that run although their comparison, in this folder, is over; other tests may have some of their own."""
    children = psutil.Process().children()
    return [p for p in children if p.status() != psutil.STATUS_ZOMBIE and p.cwd().startswith(str(folder))]


def comparison(
    folder: Path, *peers: Peer, names: tuple[str, ...] = ("prefill_512", "shared_1024"), rounds: int = 2
) -> Comparison:
    model = folder / "model.gguf"
    model.write_bytes(b"GGUF")
    chosen = [BY_NAME[name].scaled(0.05) for name in names]
    return Comparison(model, list(peers), chosen, 2, rounds, folder, seed="s")


def test_each_server_answers_each_workload_in_each_round_and_none_is_left(tmp_path: Path) -> None:
    both = comparison(tmp_path, peer("pagewell"), peer("other"))
    kept: list[int] = []
    both.run(lambda: kept.append(len(both.rounds)))
    assert kept == [1, 2] and both.errors == []
    for figures in both.rounds:
        assert list(figures) == ["pagewell", "other"]
        for workloads in figures.values():
            assert list(workloads) == [START, "prefill_512", "shared_1024", MEMORY]
            assert workloads[MEMORY]["peak_bytes"] > 1 << 20
            assert 0 < workloads[START]["ready_s"] < workloads[START]["first_answer_s"]
            assert workloads["prefill_512"]["prompt_tokens"] > 3 * 20
    assert both.measure == Measure(2.0, both.measure.n_fixed)
    assert not left(tmp_path)
    for figures in both.rounds:
        for workloads in figures.values():
            for one in workloads.values():
                one["others_cores"] = 0.0  # this machine may be busy
    rows = ratios.summarise(both.rounds)
    assert {row["workload"] for row in rows} == {START, "prefill_512", "shared_1024", MEMORY}
    assert all(row["ratios"]["other"]["n_rounds"] == 2 and row["best"] == "other" for row in rows)


def test_a_server_that_does_not_start_is_told_with_its_last_words_and_left_out(tmp_path: Path) -> None:
    three = comparison(tmp_path, peer("pagewell"), peer("broken", "ends"), Peer("missing", ("/no/such/program",)), rounds=1)
    three.run(lambda: None)
    assert [error.split(",")[0] for error in three.errors] == ["broken", "missing"]
    assert "no such model" in three.errors[0] and "cannot be started" in three.errors[1]
    assert "prefill_512" in three.rounds[0]["pagewell"] and three.rounds[0]["broken"] == {}
    (row, *_) = ratios.summarise(three.rounds)
    assert row["ratios"] == {} and row["best"] is None


def test_a_server_that_dies_in_a_workload_loses_its_figures_and_no_one_elses(tmp_path: Path) -> None:
    names = ("prefill_512", "http_8", "shared_1024")
    both = comparison(tmp_path, peer("pagewell"), peer("dying", "dies"), names=names, rounds=2)
    both.run(lambda: None)
    assert [error.split(",")[:2] for error in both.errors] == [["dying", " http_8"]] * 2
    for figures in both.rounds:
        assert list(figures["pagewell"]) == [START, *names, MEMORY]
        assert list(figures["dying"]) == [START, "prefill_512"]


def test_an_interrupt_ends_the_servers(tmp_path: Path) -> None:
    both = comparison(tmp_path, peer("pagewell"), peer("other"))

    def interrupt(line: str) -> None:
        if "prefill" in line:
            raise KeyboardInterrupt

    both.say = interrupt
    with pytest.raises(KeyboardInterrupt):
        both.run(lambda: None)
    assert not left(tmp_path)


def test_a_held_server_stands_still_and_its_end_takes_its_children_along(tmp_path: Path) -> None:
    server = Server(peer("small", "child"), tmp_path / "m.gguf", 1, tmp_path)
    server.wait_ready(30)
    child = psutil.Process(int(server.last_words().split()[-1]))
    server.pause()
    deadline = time.monotonic() + 10
    while psutil.Process(server.process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
    assert server.peak_bytes() > 1 << 20
    end([server])
    assert server.process.returncode == -signal.SIGTERM
    wait_gone(child)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", server.port))
    with pytest.raises(ServerFailed, match="ended with status"):
        server.check()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_person_who_ends_the_command_ends_the_servers(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM to `bench compare` itself, as `timeout` or a service manager sends it; SIGHUP, as a closed terminal does."""
    program = f"{sys.executable} {PROGRAM} {{port}} child"
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    command = [sys.executable, "-m", "app.cli", "bench", "compare", str(tmp_path / "model.gguf"), "--logs", str(tmp_path)]
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [*command, "--peer", f"small={program}", "--workload", "http_8"], cwd=root, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    seen = ""
    while "small: ready" not in seen:
        line = process.stderr.readline()
        assert line, seen
        seen += line
    child = psutil.Process(int((tmp_path / "model" / "round-1" / "small.log").read_text().split()[1]))
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 128 + number
    wait_gone(child)


async def test_every_workload_gives_its_figures_from_a_real_stream() -> None:
    async with running() as (small, url):
        small.n_pieces = None
        for workload in WORKLOADS:
            small.bodies.clear()
            figures = await workload.scaled(0.4).run(Endpoint(url, "m"), Measure(), "s")
            assert all(value > 0 for value in figures.values()), workload.name
            systems = {body["messages"][0]["content"] for body in small.bodies if body["messages"][0]["role"] == "system"}
            assert len(systems) == (1 if workload.load.prefix_words else 0)
            assert len({str(body["messages"]) for body in small.bodies}) == len(small.bodies)
        small.n_pieces = 3
        with pytest.raises(WorkloadFailed, match=r"128 tokens were asked for, but these came \(prompt, answer\)"):
            await BY_NAME["http_8"].run(Endpoint(url, "m"), Measure(), "s")
        small.fail_every = 2
        with pytest.raises(WorkloadFailed, match="4 of 8 requests failed: 503: busy"):
            await BY_NAME["http_8"].run(Endpoint(url, "m"), Measure(), "s")


def test_ratios_are_taken_within_a_round_and_say_how_much_better_the_base_is() -> None:
    rounds = [
        {"pagewell": {"w": {"x_per_s": 30.0, "t_s": 1.0, "n": 5}}, "a": {"w": {"x_per_s": 10.0, "t_s": 3.0, "n": 5}}, "b": {}},
        {"pagewell": {"w": {"x_per_s": 8.0, "t_s": 4.0}}, "a": {"w": {"x_per_s": 4.0, "t_s": 8.0}}, "b": {"w": {"t_s": 2.0}}},
        {"pagewell": {}, "a": {"w": {"x_per_s": 1.0, "t_s": 1.0}}, "b": {}},
    ]
    disturbed = {name: {"w": {"x_per_s": 100.0, "others_cores": 0.5}} for name in ("pagewell", "a")}
    rate, latency = ratios.summarise([*rounds, disturbed])
    assert (rate["figure"], rate["medians"]) == ("x_per_s", {"pagewell": 19.0, "a": 4.0})
    assert rate["ratios"] == {"a": {"median": 2.5, "min": 2.0, "max": 3.0, "n_rounds": 2}}
    assert latency["ratios"]["a"]["median"] == 2.5 and latency["ratios"]["b"] == {
        "median": 0.5,
        "min": 0.5,
        "max": 0.5,
        "n_rounds": 1,
    }
    assert latency["best"] == "b"
    shown = "\n".join(ratios.lines([rate, latency]))
    assert "2.50 (2.00 to 3.00, 2)" in shown and "19.0" in shown and "2.50 s" in shown


def test_peers_by_name_by_program_and_by_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho version: 1 >&2\n")
    program.chmod(0o755)
    llama = known.parse(f"llama.cpp={program}")
    assert llama.command[0] == str(program) and llama.version() == "version: 1"
    monkeypatch.setenv("PAGEWELL_PORT", "1")
    monkeypatch.setenv("PAGEWELL_API_KEY", "secret")
    command, env = llama.filled(model=Path("/m.gguf"), port=7, threads=3, home=tmp_path)
    assert command[1:5] == ["--model", "/m.gguf", "--port", "7"] and command[command.index("--threads") + 1] == "3"
    assert "PAGEWELL_PORT" not in env and "PAGEWELL_API_KEY" not in env
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    assert known.parse("llama.cpp").command[0] == str(program)
    assert [p.name for p in known.found()] == ["llama.cpp"]
    openvino = known.parse(f"openvino={sys.executable}").filled(model=Path("/m"), port=7, threads=3, home=tmp_path)[0]
    assert openvino[0] == sys.executable and Path(openvino[1]).is_file() and openvino[2:] == ["/m", "7", "3"]
    other = known.parse("mine=/bin/sh '{model}' --port {port} --kv '{\"a\": 1}'")
    assert other.filled(model=Path("/m"), port=7, threads=3, home=tmp_path)[0] == [
        "/bin/sh",
        "/m",
        "--port",
        "7",
        "--kv",
        '{"a": 1}',
    ]
    _, env = known.pagewell().filled(model=Path("/m"), port=7, threads=3, home=tmp_path)
    assert (env["OMP_NUM_THREADS"], env["PAGEWELL_HOME"]) == ("3", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("vllm", "no peer that is known"),
        ("llama.cpp=/no/such/program", "is not there or is no program"),
        ("mine=/no/such/program {port}", "is not there or is no program"),
        ("mine=/etc/passwd {port}", "is not there or is no program"),
        ("mine=/bin/false", r"/bin/false has no \{port\}"),
        ("mine=/bin/sh 'a {port}", "is no command"),
        ("pagewell=/bin/sh {port}", "no name for a peer"),
        ("a b=/bin/sh {port}", "no name for a peer"),
        ("=/bin/sh {port}", "no name for a peer"),
    ],
)
def test_what_is_no_peer_is_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        known.parse(text)


def test_a_program_that_does_not_say_its_version_has_none(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_bytes(b"\x7fELF no program")
    program.chmod(0o755)
    assert known.parse(f"llama.cpp={program}").version() is None


def test_a_measurement_that_failed_fails_the_command_once_all_are_done(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    peer = f"--peer=small={sys.executable} {PROGRAM} {{port}} ends"
    command = ["bench", "compare", str(tmp_path / "model.gguf"), peer, "--workload", "start", "--rounds", "1", "--patience", "0"]
    result = CliRunner().invoke(cli, [*command, "--json", str(tmp_path / "r.json")])
    assert isinstance(result.exception, PagewellError) and "2 of the measurements failed" in str(result.exception)
    assert len(json.loads((tmp_path / "r.json").read_text())["models"][0]["errors"]) == 2


def test_logs_that_cannot_be_kept_are_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    peer = f"--peer=small={sys.executable} {PROGRAM} {{port}}"
    result = CliRunner().invoke(cli, ["bench", "compare", str(models.smollm2()), peer, "--logs", str(tmp_path / "file" / "logs")])
    assert isinstance(result.exception, ConfigError) and "No logs can be kept" in str(result.exception)
