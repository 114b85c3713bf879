"""POST /v1/chat/completions over the fake runner: shapes, streams, usage."""

from __future__ import annotations

import json
from typing import Any

import pytest

MESSAGES = [{"role": "user", "content": "Hello"}]


def events(text: str) -> list[Any]:
    """The payloads of a stream; each must stand on a `data: ` line of its own, and the last is [DONE]."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    payloads = [part.removeprefix("data: ") for part in parts if not part.startswith(":")]
    assert all(part.startswith(("data: ", ": keep-alive")) for part in parts)
    assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


async def ask(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 5, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: Any, **fields: Any) -> list[Any]:
    body = {"messages": MESSAGES, "max_tokens": 5, "stream": True, **fields}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    return events(response.text)


async def test_a_whole_answer_has_openais_shape_and_usage(client: Any) -> None:
    body = await ask(client, model="fake", cache_salt="first")
    assert body["object"] == "chat.completion" and body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant" and len(choice["message"]["content"]) == 5
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 5
    assert usage["total_tokens"] == usage["prompt_tokens"] + 5
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_a_stream_begins_with_the_role_and_ends_with_one_finish(client: Any) -> None:
    chunks = await stream(client)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert chunk["id"] == chunks[0]["id"] and isinstance(chunk["created"], int) and chunk["model"] == "fake"
        assert len(chunk["choices"]) == 1 and "usage" not in chunk
    for chunk in chunks[1:-1]:
        assert chunk["choices"][0]["finish_reason"] is None
        assert chunk["choices"][0]["delta"].keys() == {"content"} and chunk["choices"][0]["delta"]["content"]


async def test_the_joined_stream_is_the_whole_answer(client: Any) -> None:
    whole = await ask(client, temperature=0)
    chunks = await stream(client, temperature=0)
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == whole["choices"][0]["message"]["content"]


async def test_usage_comes_once_in_a_last_chunk_without_choices_when_asked(client: Any) -> None:
    chunks = await stream(client, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 5
    assert all("usage" not in chunk for chunk in chunks[:-1])


async def test_a_repeated_prompt_reports_cached_tokens(client: Any) -> None:
    await ask(client)
    assert (await ask(client))["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


async def test_cache_salt_keeps_prefixes_apart(client: Any) -> None:
    await ask(client, cache_salt="a")
    assert (await ask(client, cache_salt="b"))["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_n_choices_are_told_apart_by_index(client: Any) -> None:
    whole = await ask(client, n=3, seed=1)
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2] and len(set(texts)) == 3
    joined = ["", "", ""]
    finishes = []
    for chunk in await stream(client, n=3, seed=1):
        (choice,) = chunk["choices"]
        joined[choice["index"]] += choice["delta"].get("content", "")
        finishes += [choice["index"]] if choice["finish_reason"] else []
    assert joined == texts and sorted(finishes) == [0, 1, 2]


async def test_a_seed_repeats_an_answer(client: Any) -> None:
    first, second, other = [(await ask(client, seed=seed))["choices"][0]["message"]["content"] for seed in (7, 7, 8)]
    assert first == second != other


async def test_a_stop_string_ends_the_answer_and_is_left_out(client: Any) -> None:
    text = (await ask(client, temperature=0, max_tokens=8))["choices"][0]["message"]["content"]
    for stop in (text[3:5], [text[3:5], "never", "", "x" * 40]):
        choice = (await ask(client, temperature=0, max_tokens=8, stop=stop))["choices"][0]
        assert choice["message"]["content"] == text[:3] and choice["finish_reason"] == "stop"
    chunks = await stream(client, temperature=0, max_tokens=8, stop=text[3:5])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == text[:3]
    kept = await ask(client, temperature=0, max_tokens=8, stop=text[3:5], include_stop_str_in_output=True)
    assert kept["choices"][0]["message"]["content"] == text[:5]


async def test_log_probabilities_come_with_text_and_bytes(client: Any) -> None:
    choice = (await ask(client, logprobs=True, top_logprobs=2))["choices"][0]
    rows = choice["logprobs"]["content"]
    assert [row["token"] for row in rows] == list(choice["message"]["content"])
    assert rows[0]["bytes"] == list(rows[0]["token"].encode()) and rows[0]["logprob"] == -0.5
    chunks = await stream(client, logprobs=True, seed=3)
    streamed = [row for c in chunks for row in (c["choices"][0].get("logprobs") or {"content": []})["content"]]
    assert len(streamed) == 5


async def test_no_limit_runs_to_the_end_of_the_window(client: Any) -> None:
    body = await ask(client, max_tokens=None)
    assert body["usage"]["total_tokens"] == 256 and body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
async def test_both_names_of_the_output_limit_work(client: Any, field: str) -> None:
    body = await ask(client, **{"max_tokens": None, field: 3})
    assert body["usage"]["completion_tokens"] == 3


async def test_num_ctx_caps_the_window_of_one_request(client: Any) -> None:
    body = await ask(client, max_tokens=None, num_ctx=64)
    assert body["usage"]["total_tokens"] == 64


async def test_an_assistant_message_at_the_end_is_continued(client: Any) -> None:
    prefill = [*MESSAGES, {"role": "assistant", "content": "Once"}]
    as_turn = {"messages": prefill, "add_generation_prompt": True, "continue_final_message": False}
    continued = (await client.post("/tokenize", json={"messages": prefill})).json()
    turn = (await client.post("/tokenize", json=as_turn)).json()
    assert bytes(continued["tokens"]).endswith(b"Once")
    assert bytes(turn["tokens"]).endswith(b"<assistant>")


async def test_tools_reach_the_template_unless_forbidden(client: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    plain = (await ask(client))["usage"]["prompt_tokens"]
    assert (await ask(client, tools=[tool], tool_choice="auto"))["usage"]["prompt_tokens"] > plain
    assert (await ask(client, tools=[tool], tool_choice="none"))["usage"]["prompt_tokens"] == plain


async def test_a_responses_shaped_body_is_answered_in_chat_shape(client: Any) -> None:
    body = {
        "model": "fake",
        "instructions": "Be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"type": "reasoning", "summary": []},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}],
        "max_output_tokens": 4,
        "stream": True,
    }
    response = await client.post("/v1/chat/completions", json=body)
    chunks = events(response.text)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_unknown_fields_are_never_refused(client: Any) -> None:
    await ask(
        client,
        parallel_tool_calls=False,
        reasoning_effort="high",
        reasoning={"effort": "low"},
        verbosity="low",
        prediction=None,
        store=True,
        metadata={"a": 1},
        service_tier="auto",
        user="me",
        safety_identifier="x",
        prompt_cache_key="k",
        include=["x"],
        keep_alive="5m",
        think=True,
        options={"num_ctx": 5},
        context_management={},
        output_config={},
        thinking={"type": "adaptive"},
        response_format={"type": "text"},
        format="",
        modalities=["text"],
        best_of=1,
    )


async def test_half_a_surrogate_pair_and_a_byte_order_mark_are_repaired(client: Any) -> None:
    raw = b'\xef\xbb\xbf{"max_tokens": 2, "messages": [{"role": "user", "content": "cut \\ud83d"}]}'
    response = await client.post("/v1/chat/completions", content=raw, headers={"content-type": "application/json"})
    assert response.status_code == 200, response.text
