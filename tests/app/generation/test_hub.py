"""The hub owns the answers: they go on without a browser, end once, and are never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.db.database import Database
from app.db.models import Conversation, Generation, Message, Role, State
from app.generation.hub import GenerationHub
from app.generation.live import Live, Phase
from app.generation.log import GenerationLog
from engine.errors import PromptTooLong
from engine.types import FinishReason, SamplingParams
from tests.app.scripted import ScriptedEngine, ScriptedHost, until

CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "pagewell.db")
    await database.open()
    yield database
    await database.close()


class Bench:
    """A hub on a scripted engine, with one conversation."""

    def __init__(self, database: Database, engine: ScriptedEngine, state: str = "ready") -> None:
        self.database = database
        self.engine = engine
        self.host = ScriptedHost(engine, state)
        self.hub = GenerationHub(GenerationLog(database))

    async def start(self, text: str = "", chat: list[dict[str, str]] = CHAT) -> Live:
        async with self.database.session() as session:
            conversation = Conversation(title="t", leaf_id=None)
            session.add(conversation)
            await session.flush()
            message = Message(conversation_id=conversation.id, role=Role.ASSISTANT, text=text, generations=[Generation()])
            session.add(message)
            await session.commit()
        live = Live(message.generation.id, message.id, conversation.id, text)
        self.hub.start(live, self.host, chat, SamplingParams())
        return live

    async def rows(self, live: Live) -> tuple[str, Generation]:
        async with self.database.session() as session:
            message = await session.get(Message, live.message_id)
            return message.text, await session.get(Generation, live.generation_id)


@pytest.fixture
async def bench(database: Database) -> AsyncIterator[Bench]:
    bench = Bench(database, ScriptedEngine())
    yield bench
    await bench.hub.close()


async def test_an_answer_is_written_and_saved_without_anybody_watching(bench: Bench) -> None:
    live = await bench.start()
    answer = (await bench.engine.answer()).begin(n_cached=3)
    assert answer.prompt == "<user>hello<assistant>"
    answer.say("One ").say("two.").end()
    await until(lambda: live.ended)
    text, generation = await bench.rows(live)
    assert text == "One two."
    assert (generation.state, generation.finish_reason) == (State.DONE, "stop")
    assert (generation.n_prompt, generation.n_cached, generation.n_output) == (len(answer.prompt), 3, 8)
    assert (generation.ttft_s, generation.tokens_per_s) == (0.25, 3.5)
    assert generation.ended_at is not None


async def test_text_becomes_operations_within_a_tick_and_is_saved_within_a_second(bench: Bench) -> None:
    live = await bench.start()
    (await bench.engine.answer()).begin().say("hello")
    await asyncio.wait_for(live.beyond(live.seq), 1)
    await until(lambda: live.snapshot().tail == "<p>hello</p>\n", 0.5)
    async with asyncio.timeout(1.5):
        while (await bench.rows(live))[0] != "hello":
            await asyncio.sleep(0.05)
    assert (await bench.rows(live))[1].state is State.RUNNING


async def test_a_burst_of_tokens_is_one_operation(bench: Bench) -> None:
    live = await bench.start()
    answer = (await bench.engine.answer()).begin()
    await until(lambda: live.phase is Phase.READING)
    for _ in range(200):
        answer.say("x ")
    await until(lambda: len(live.snapshot().tail) > 400)
    assert live.seq <= 3


async def test_a_stop_keeps_the_text_and_aborts_the_request(bench: Bench) -> None:
    live = await bench.start()
    answer = (await bench.engine.answer()).begin().say("so far")
    await until(lambda: live.text == "so far")
    bench.hub.stop(live.generation_id)
    await until(lambda: live.ended)
    assert answer.aborted
    text, generation = await bench.rows(live)
    assert (text, generation.state) == ("so far", State.STOPPED)


async def test_a_stop_while_the_model_loads_ends_without_a_request(database: Database) -> None:
    bench = Bench(database, ScriptedEngine(), "loading")
    live = await bench.start()
    await until(lambda: live.phase is Phase.LOADING)
    assert live.progress == 0.4
    bench.hub.stop(live.generation_id)
    await until(lambda: live.ended)
    assert bench.engine.answers == []
    assert (await bench.rows(live))[1].state is State.STOPPED


async def test_an_answer_waits_for_the_model_to_load(database: Database) -> None:
    bench = Bench(database, ScriptedEngine(), "loading")
    live = await bench.start()
    await until(lambda: live.phase is Phase.LOADING)
    bench.host.state = "ready"
    (await bench.engine.answer()).begin().say("here").end()
    await until(lambda: live.ended)
    assert (await bench.rows(live))[0] == "here"


async def test_the_end_of_the_server_leaves_an_interrupted_answer_with_its_text(bench: Bench) -> None:
    live = await bench.start()
    answer = (await bench.engine.answer()).begin().say("kept")
    await until(lambda: live.text == "kept")
    await bench.hub.close()
    assert answer.aborted and live.ended
    text, generation = await bench.rows(live)
    assert (text, generation.state) == ("kept", State.INTERRUPTED)


async def test_a_crash_leaves_the_text_of_a_second_ago_and_the_next_start_says_interrupted(bench: Bench) -> None:
    live = await bench.start()
    (await bench.engine.answer()).begin().say("kept")
    async with asyncio.timeout(1.5):
        while (await bench.rows(live))[0] != "kept":
            await asyncio.sleep(0.05)
    next_life = GenerationHub(GenerationLog(bench.database))
    await next_life.open()
    text, generation = await bench.rows(live)
    assert (text, generation.state) == ("kept", State.INTERRUPTED)
    assert next_life.get(live.generation_id) is None


async def test_the_stop_strings_of_a_template_end_an_answer(bench: Bench) -> None:
    await bench.start()
    answer = await bench.engine.answer()
    assert answer.params.stop == ("<user>",)
    answer.begin().end()


async def test_a_text_that_can_never_fit_is_refused_before_it_is_tokenised(bench: Bench) -> None:
    live = await bench.start(chat=[{"role": "user", "content": "x" * 500_000}])
    await until(lambda: live.ended)
    assert not bench.engine.answers


async def test_an_answer_that_goes_on_gives_its_text_to_the_template(bench: Bench) -> None:
    live = await bench.start("Once ", [*CHAT, {"role": "assistant", "content": "Once "}])
    assert live.snapshot().tail == "<p>Once</p>\n"
    answer = (await bench.engine.answer()).begin()
    assert answer.prompt == "<user>hello<assistant>Once "
    answer.say("more.").end()
    await until(lambda: live.ended)
    assert (await bench.rows(live))[0] == "Once more."


@pytest.mark.parametrize(
    ("engine", "state", "words"),
    [
        (ScriptedEngine(refusal=PromptTooLong(5000, 4096)), "ready", "maximum context length is 4096"),
        (ScriptedEngine(has_template=False), "ready", "template of scripted cannot be read"),
        (ScriptedEngine(), "failed", "could not be loaded"),
    ],
)
async def test_a_refusal_ends_the_answer_with_reason_and_remedy(
    database: Database, engine: ScriptedEngine, state: str, words: str
) -> None:
    bench = Bench(database, engine, state)
    live = await bench.start()
    await until(lambda: live.ended)
    _, generation = await bench.rows(live)
    assert generation.state is State.FAILED
    assert words in generation.error and generation.hint


async def test_an_error_of_the_engine_keeps_the_text(bench: Bench) -> None:
    live = await bench.start()
    (await bench.engine.answer()).begin().say("half").fail("out of blocks")
    await until(lambda: live.ended)
    text, generation = await bench.rows(live)
    assert (text, generation.state, generation.error) == ("half", State.FAILED, "out of blocks")


async def test_an_engine_that_is_closed_leaves_an_interrupted_answer(bench: Bench) -> None:
    live = await bench.start()
    answer = (await bench.engine.answer()).begin().say("half")
    await until(lambda: live.text == "half")
    answer.stream.abort()
    await until(lambda: live.ended)
    assert (await bench.rows(live))[1].state is State.INTERRUPTED


async def test_the_end_of_the_window_is_recorded(bench: Bench) -> None:
    live = await bench.start()
    (await bench.engine.answer()).begin().say("long").end(FinishReason.LENGTH)
    await until(lambda: live.ended)
    assert (await bench.rows(live))[1].finish_reason == "length"


async def test_a_conversation_is_busy_until_its_answer_has_ended(bench: Bench) -> None:
    ended: list[Live] = []
    bench.hub.on_end.append(ended.append)
    live = await bench.start()
    assert bench.hub.running_in(live.conversation_id) is live
    assert bench.hub.busy_conversations() == {live.conversation_id}
    await bench.hub.stop_and_wait(live.conversation_id)
    assert bench.hub.running_in(live.conversation_id) is None
    assert bench.hub.busy_conversations() == set()
    assert ended == [live]
    assert bench.hub.get(live.generation_id) is live, "a browser that is just connecting still finds it"
