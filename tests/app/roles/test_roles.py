"""A prefill side and a decode side: the text is that of a process alone, whatever becomes of the other one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
from msgspec import structs

from app.roles import decode as decoding
from app.roles.wire import Ask, Reply, receive, send
from engine.kv.tiers.shared_folder import KIND_DIGITS, SharedFolder
from engine.types import Request, SamplingParams
from tests.app.roles.sides import (
    BLOCK,
    KIND,
    N_PROMPT,
    blocks_in,
    decode,
    expect,
    prefill,
    prompt,
    until_idle,
)
from tests.app.scripted import until

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nothing is handed over on Windows")
HANDED_OVER = (N_PROMPT - 1) // BLOCK * BLOCK
ROOM = 400_000
"""Bytes: more than a socket and the stream on it take before who writes has to wait."""


async def test_a_long_prompt_is_computed_by_the_prefill_side_and_the_text_is_that_of_one_process(memory: Path) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        for i in range(3):
            output = await side.ask(prompt(i))
            assert output.outputs[0].text == await expect(i)
            assert output.usage.n_cached == HANDED_OVER
        assert side.outcomes == {"done": 3}
        ours, theirs = (await side.engine.stats()).counters, (await host.current.stats()).counters
        assert ours.prompt_tokens == 3 * (N_PROMPT - HANDED_OVER), "the decode side computed the ends only"
        assert theirs.prompt_tokens == 3 * N_PROMPT
        assert ours.n_fetched == theirs.n_stored == 3 * HANDED_OVER // BLOCK
        await until_idle(side.engine)
        await until_idle(host.current)
        await until(lambda: blocks_in(memory) == 0)
    assert list(memory.iterdir()) == [], "something was left in shared memory"


async def test_many_at_once_get_their_own(memory: Path) -> None:
    async with prefill(memory, step_s=0.001), decode(memory) as side:
        outputs = await asyncio.gather(*(side.ask(prompt(i % 8)) for i in range(16)))
        for i, output in enumerate(outputs):
            assert output.outputs[0].text == await expect(i % 8)
        assert side.outcomes["done"] == 16 and all(output.usage.n_cached == HANDED_OVER for output in outputs)


async def test_of_what_continues_a_known_text_only_the_rest_is_handed_over(memory: Path) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        await side.ask(prompt(1))
        before = (await host.current.stats()).counters.n_stored
        output = await side.ask(prompt(1) + prompt(2, 400))
        assert output.usage.n_cached == (N_PROMPT + 400 - 1) // BLOCK * BLOCK and side.outcomes == {"done": 2}
        assert (await host.current.stats()).counters.n_stored - before <= 400 // BLOCK + 1


async def test_a_short_prompt_and_a_known_one_and_one_for_its_logprobs_are_not_asked_for(memory: Path) -> None:
    async with prefill(memory), decode(memory) as side:
        await side.ask(prompt(1, decoding.LEAST_TOKENS - 1))
        await side.ask(prompt(2))
        await side.ask(prompt(2))
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        assert [event async for event in side.engine.submit(prompt(3), params)]
        assert side.outcomes == {"done": 1}


async def test_salts_are_kept_apart_and_priorities_passed_on(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        seen = []
        real = host.current.submit

        def submit(*args, **knobs):
            seen.append((knobs["cache_salt"], knobs["priority"]))
            return real(*args, **knobs)

        monkeypatch.setattr(host.current, "submit", submit)
        first = await side.ask(prompt(1), cache_salt="alice", priority=-3)
        assert first.usage.n_cached == HANDED_OVER and seen == [("alice", -3)]
        for salt in ("bob", ""):
            before = (await host.current.stats()).counters.prompt_tokens
            output = await side.ask(prompt(1), cache_salt=salt, priority=2)
            assert (await host.current.stats()).counters.prompt_tokens == before + N_PROMPT, "another salt's KV was used"
            assert output.outputs[0].text == first.outputs[0].text
        assert seen[1:] == [("bob", 2), ("", 2)]


async def test_without_a_prefill_side_it_computes_itself_says_so_once_and_goes_on_once_there_is_one(
    memory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with decode(memory) as side:
        for i in (1, 2):
            assert (await side.ask(prompt(i))).outputs[0].text == await expect(i)
        assert side.outcomes == {"absent": 2} and caplog.text.count("pagewell serve --role prefill") == 1
        async with prefill(memory):
            assert (await side.ask(prompt(3))).usage.n_cached == HANDED_OVER
            assert "again" in caplog.text
        assert (await side.ask(prompt(4))).usage.n_cached == 0
        assert side.outcomes == {"absent": 3, "done": 1} and caplog.text.count("pagewell serve --role prefill") == 2


async def test_one_of_another_kind_is_named_as_the_reason(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = SharedFolder(memory)
    (folder.kind("f" * KIND_DIGITS) / "1.sock").touch()
    async with decode(memory) as side:
        await side.ask(prompt(1))
    assert "another model, version, KV format or --block-size" in caplog.text
    folder.release()


async def test_who_takes_too_long_is_not_waited_for_and_what_is_there_is_taken(memory: Path) -> None:
    async with prefill(memory, step_s=0.02) as host, decode(memory, wait_s=0.3) as side:
        output = await side.ask(prompt(1, 2000))
        assert output.outputs[0].text == await expect(1, 2000)
        assert side.outcomes == {"late": 1} and 0 < output.usage.n_cached < 1900
        await until_idle(host.current)


async def test_what_takes_longer_than_a_lease_is_handed_over_whole(memory: Path) -> None:
    async with prefill(memory, step_s=0.1, lease_s=0.5), decode(memory, lease_s=0.5) as side:
        output = await side.ask(prompt(1, 2000))
        assert output.outputs[0].text == await expect(1, 2000)
        assert side.outcomes == {"done": 1} and output.usage.n_cached == (2000 - 1) // BLOCK * BLOCK


async def test_one_that_knows_less_leaves_it_to_who_asks(memory: Path) -> None:
    async with decode(memory) as side:
        await side.ask(prompt(1, 1200))
        async with prefill(memory) as host:
            output = await side.ask(prompt(1, 1200) + prompt(2, 300))
            assert side.outcomes == {"absent": 1, "declined": 1} and output.usage.n_cached == 1200
            assert (await host.current.stats()).counters.n_requests == 0


async def test_memory_that_is_too_small_costs_the_rest_and_is_said(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with prefill(memory, most=3000), decode(memory) as side:
        output = await side.ask(prompt(1))
        assert output.outputs[0].text == await expect(1)
        assert side.outcomes == {"partial": 1} and 0 < output.usage.n_cached < HANDED_OVER
    assert caplog.text.count("--kv-shared-space") == 2, "each side says it in its log"


async def test_a_prefill_side_whose_window_is_smaller_says_why(memory: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        host.current.info = structs.replace(host.current.info, max_model_len=500)
        assert (await side.ask(prompt(1))).outputs[0].text == await expect(1)
        assert side.outcomes == {"failed": 1} and "could not compute a prompt" in caplog.text


async def test_a_client_that_leaves_frees_both_sides(memory: Path) -> None:
    async with prefill(memory, step_s=0.02) as host, decode(memory) as side:
        stream = side.engine.submit(prompt(1, 2000), SamplingParams(max_tokens=4))
        await until(lambda: host.current.n_live)
        await stream.aclose()
        await until_idle(side.engine)
        await until_idle(host.current)
        assert (await host.current.stats()).counters.n_aborted == 1


async def test_a_prefill_side_that_stops_in_the_middle_is_done_without(memory: Path) -> None:
    async with decode(memory) as side:
        async with prefill(memory, step_s=0.02) as host:
            asking = asyncio.create_task(side.ask(prompt(1, 2000)))
            await until(lambda: blocks_in(memory) > 4)
            assert host.current.n_live
        output = await asking
        assert output.outputs[0].text == await expect(1, 2000) and 0 < output.usage.n_cached < 1900
        assert side.outcomes == {"failed": 1}


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def hang_up_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await receive(reader, Ask)
    await send(writer, Reply("computing"))
    writer.close()


async def talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await receive(reader, Ask)
    writer.write(b"\0\0\0\5hello")
    await reader.read()


async def talk_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await receive(reader, Ask)
    writer.write(b"\xff\xff\xff\xff" + bytes(1000))
    await reader.read()


async def promise_what_does_not_come(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await receive(reader, Ask)
    await send(writer, Reply("done"))


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        (say_nothing, "failed"),
        (hang_up, "failed"),
        (hang_up_later, "failed"),
        (talk_nonsense, "failed"),
        (talk_without_end, "failed"),
        (promise_what_does_not_come, "partial"),
    ],
)
async def test_a_peer_that_misbehaves_costs_time_and_nothing_else(
    behaviour: Behaviour, outcome: str, memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(decoding, "SILENCE_S", 0.2)
    async with decode(memory) as side:
        folder = SharedFolder(memory)
        server = await asyncio.start_unix_server(behaviour, folder.kind(KIND[:KIND_DIGITS]) / "1.sock")
        for i in (1, 2):
            output = await side.ask(prompt(i))
            assert output.outputs[0].text == await expect(i) and output.usage.n_cached == 0
        server.close()
        folder.release()
    rests = behaviour in (say_nothing, promise_what_does_not_come)
    assert side.outcomes == ({outcome: 1, "absent": 1} if rests else {outcome: 2}), "these are left alone for a while"
    assert len([record for record in caplog.records if "computed here" in record.getMessage()]) == 1, "it is said once"


async def test_one_that_hangs_is_noticed_when_a_prompt_is_more_than_its_socket_takes(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What asks gets stuck in writing, and would wait for as long as a prompt may."""
    monkeypatch.setattr(decoding, "SILENCE_S", 0.1)
    async with decode(memory, wait_s=5.0) as side:
        folder = SharedFolder(memory)
        path = folder.kind(KIND[:KIND_DIGITS]) / "1.sock"
        long = Request("long", prompt(1, 300_000), SamplingParams())
        assert len(msgspec.json.encode(long.prompt_token_ids)) > ROOM
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(path))
            silent.listen()
            assert side.engine.ahead is not None
            await side.engine.ahead(long)
            assert side.outcomes == {"failed": 1} and "has said nothing for 0.1 s" in caplog.text
            await side.engine.ahead(long)
            assert path.exists() and side.outcomes == {"failed": 1, "absent": 1}, "it is left alone for a while"
        folder.release()


async def test_one_that_was_late_is_left_alone_for_a_while(memory: Path) -> None:
    n_asked = 0

    async def compute_without_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal n_asked
        n_asked += 1
        await receive(reader, Ask)
        with contextlib.suppress(OSError):  # who asked has left
            while True:
                await send(writer, Reply("computing"))
                await asyncio.sleep(0.01)

    async with decode(memory, wait_s=0.2) as side:
        folder = SharedFolder(memory)
        path = folder.kind(KIND[:KIND_DIGITS]) / "1.sock"
        server = await asyncio.start_unix_server(compute_without_end, path)
        for i in (1, 2, 3):
            output = await side.ask(prompt(i))
            assert output.outputs[0].text == await expect(i) and output.usage.n_cached == 0
        assert path.exists() and side.outcomes == {"late": 1, "absent": 2} and n_asked == 1
        server.close()
        folder.release()


@pytest.mark.parametrize("raw", [b"", b"\0\0", b"\0\0\0\5hello", b"\xff\xff\xff\xff", b'\0\0\0\x11{"token_ids":[-1]}'])
async def test_who_asks_nonsense_harms_nobody(raw: bytes, memory: Path) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        (path,) = memory.glob("*/*/*.sock")
        assert path.stat().st_mode & 0o777 == 0o600
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(raw)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        assert (await side.ask(prompt(1))).usage.n_cached == HANDED_OVER
        assert host.current.n_live == 0


async def test_who_asks_and_hangs_up_half_the_line_has_left(memory: Path) -> None:
    async with prefill(memory, step_s=0.05) as host:
        (path,) = memory.glob("*/*/*.sock")
        reader, writer = await asyncio.open_unix_connection(path)
        await send(writer, Ask(prompt(1, 2000), 2000, "", 0))
        await until(lambda: host.current.n_live)
        writer.write_eof()
        await until(lambda: not host.current.n_live)
        assert (await host.current.stats()).counters.n_aborted == 1 and len(await reader.read()) < 100
        writer.close()


async def test_what_a_dead_prefill_side_left_is_passed_over_for_a_living_one(memory: Path) -> None:
    async with prefill(memory), decode(memory) as side:
        kind = next(memory.glob("*/" + KIND[:KIND_DIGITS]))
        for name in ("0-dead.sock", "99-dead.sock"):
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(kind / name))
        for i in range(3):
            assert (await side.ask(prompt(i))).usage.n_cached == HANDED_OVER
        assert side.outcomes == {"done": 3} and len(list(kind.glob("*.sock"))) == 1


async def test_several_prefill_sides_take_turns(memory: Path) -> None:
    async with prefill(memory) as one, decode(memory) as side:
        async with prefill(memory) as two:
            for i in range(4):
                assert (await side.ask(prompt(i))).usage.n_cached == HANDED_OVER
            assert [(await host.current.stats()).counters.n_requests for host in (one, two)] == [2, 2]
        assert (await side.ask(prompt(5))).usage.n_cached == HANDED_OVER


async def test_it_is_reached_while_its_model_sleeps(memory: Path) -> None:
    async with prefill(memory) as host, decode(memory) as side:
        await host.unload()
        assert (await side.ask(prompt(1))).usage.n_cached == HANDED_OVER and host.state == "ready"
