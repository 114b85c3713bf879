"""The real openai package against a real server with the bundled model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.server import LiveServer

FRANCE: Any = [{"role": "user", "content": "Name the capital of France."}]
SHORT: Any = {"model": "smollm2", "messages": FRANCE, "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def sync_client(server: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none is needed", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def async_client(server: LiveServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=240)


def test_a_chat_is_answered_with_sense(sync_client: openai.OpenAI) -> None:
    answer = sync_client.chat.completions.create(**{**SHORT, "max_tokens": 12})
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop" and answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_joins_to_the_same_text(sync_client: openai.OpenAI) -> None:
    stream = sync_client.chat.completions.create(**SHORT, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == "The capital of France"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["length"]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 4


def test_choices_and_log_probabilities(sync_client: openai.OpenAI) -> None:
    answer = sync_client.chat.completions.create(**{**SHORT, "max_tokens": 2, "n": 2}, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1]
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert "".join(row.token for row in logprobs.content) == answer.choices[0].message.content == "The capital"
    for row in logprobs.content:
        assert row.logprob <= 0 and len(row.top_logprobs) == 2
        assert row.top_logprobs[0].token == row.token and row.top_logprobs[0].logprob == pytest.approx(row.logprob)


def test_text_completions_with_echo_and_log_probabilities(sync_client: openai.OpenAI) -> None:
    answer = sync_client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=2, temperature=0, echo=True, logprobs=1
    )
    (choice,) = answer.choices
    assert choice.text.startswith("The capital of France is Paris") and choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()) == choice.text
    assert choice.logprobs.token_logprobs is not None and choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])


def test_a_text_completion_streams(sync_client: openai.OpenAI) -> None:
    stream = sync_client.completions.create(
        model="smollm2", prompt="The capital of France is", max_tokens=3, temperature=0, stream=True
    )
    assert "".join(choice.text for chunk in stream for choice in chunk.choices).startswith(" Paris")


def test_models_are_listed_and_found(sync_client: openai.OpenAI) -> None:
    assert [model.id for model in sync_client.models.list()] == ["smollm2"]
    assert sync_client.models.retrieve("smollm2").id == "smollm2"


def test_errors_arrive_as_the_packages_own_types(sync_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        sync_client.chat.completions.create(**{**SHORT, "model": "gpt-4o"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        sync_client.chat.completions.create(**{**SHORT, "temperature": -1})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        sync_client.chat.completions.create(**{**SHORT, "messages": [{"role": "user", "content": "word " * 3000}]})
    assert long.value.code == "context_length_exceeded" and "maximum context length is 2048 tokens" in str(long.value)
    with pytest.raises(openai.BadRequestError) as unenforced:
        sync_client.chat.completions.create(**SHORT, response_format={"type": "json_object"})
    assert unenforced.value.param == "response_format"


async def test_asynchronous_calls_run_side_by_side(async_client: openai.AsyncOpenAI) -> None:
    answers = await asyncio.gather(*(async_client.chat.completions.create(**SHORT) for _ in range(3)))
    assert {answer.choices[0].message.content for answer in answers} == {"The capital of France"}


async def test_leaving_an_asynchronous_stream_frees_everything(server: LiveServer, async_client: openai.AsyncOpenAI) -> None:
    stream = await async_client.chat.completions.create(**{**SHORT, "max_tokens": 200}, stream=True)
    n_chunks = 0
    async for _ in stream:
        n_chunks += 1
        if n_chunks == 3:
            break
    await stream.close()
    began = time.monotonic()
    server.wait_idle(10)
    assert time.monotonic() - began < 5, "within one step, and a step takes long on slow operators"


async def test_sixteen_streams_share_a_long_system_prompt(server: LiveServer, async_client: openai.AsyncOpenAI) -> None:
    system = "You answer in one word. " + "Rule: be brief and kind to everyone you meet. " * 95
    tokens = await async_client.post("/tokenize", body={"prompt": system}, cast_to=object)
    assert 900 < tokens["count"] < 1200  # type: ignore[index]

    async def one(number: int) -> Any:
        messages: Any = [{"role": "system", "content": system}, {"role": "user", "content": f"Say {number}."}]
        stream = await async_client.chat.completions.create(
            model="smollm2",
            messages=messages,
            max_tokens=64,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},  # long enough to be seen together
        )
        return [chunk async for chunk in stream]

    running = [asyncio.create_task(one(number)) for number in range(16)]
    most = 0.0
    while not all(task.done() for task in running):
        most = max(most, await asyncio.to_thread(server.metric, "vllm:num_requests_running"))
        await asyncio.sleep(0.05)
    answers = [task.result() for task in running]
    cached = sorted(chunks[-1].usage.prompt_tokens_details.cached_tokens for chunks in answers)
    assert all(chunks[-2].choices[0].finish_reason in ("stop", "length") for chunks in answers)
    assert cached[1] > 900, cached
    assert most == 16
    server.wait_idle()
