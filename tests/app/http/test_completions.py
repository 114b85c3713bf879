"""POST /v1/completions over the fake runner, whose tokens are bytes."""

from __future__ import annotations

from typing import Any

import pytest

from engine.text.vocabulary import FimTokens
from tests.app.http.conftest import Tokenizer
from tests.app.http.test_chat import events


async def ask(client: Any, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0, **fields}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


async def stream(client: Any, **fields: Any) -> list[Any]:
    body = {"prompt": "Hello", "max_tokens": 4, "temperature": 0, "stream": True, **fields}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return events(response.text)


async def refuse(client: Any, **fields: Any) -> dict[str, Any]:
    response = await client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 4, **fields})
    assert response.status_code == 400, response.text
    return response.json()["error"]


async def test_text_and_token_ids_of_the_same_prompt_give_the_same_answer(client: Any) -> None:
    text = (await ask(client))["choices"][0]["text"]
    assert len(text) == 4
    for prompt in (["Hello"], list(b"Hello"), [list(b"Hello")]):
        assert (await ask(client, prompt=prompt))["choices"][0]["text"] == text


async def test_choices_of_several_prompts_are_in_order(client: Any) -> None:
    single = [(await ask(client, prompt=prompt))["choices"][0]["text"] for prompt in ("one", "two")]
    body = await ask(client, prompt=["one", "two"])
    assert [choice["text"] for choice in body["choices"]] == single
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["prompt_tokens"] == 6 and body["usage"]["completion_tokens"] == 8
    joined = ["", ""]
    for chunk in await stream(client, prompt=["one", "two"]):
        joined[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert joined == single


async def test_several_prompts_with_several_choices_each(client: Any) -> None:
    body = await ask(client, prompt=["one", "two"], n=2, temperature=1, seed=1)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in body["choices"]}) == 4


async def test_a_stream_ends_with_one_finish_and_usage_when_asked(client: Any) -> None:
    chunks = await stream(client, stream_options={"include_usage": True})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == 9
    finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]]
    assert finishes[-1] == "length" and set(finishes[:-1]) == {None}


async def test_echo_puts_the_prompt_first(client: Any) -> None:
    text = (await ask(client))["choices"][0]["text"]
    assert (await ask(client, echo=True))["choices"][0]["text"] == "Hello" + text
    assert "".join(chunk["choices"][0]["text"] for chunk in await stream(client, echo=True)) == "Hello" + text


async def test_echo_without_new_tokens_scores_the_prompt(client: Any) -> None:
    body = await ask(client, echo=True, max_tokens=0, logprobs=1)
    (choice,) = body["choices"]
    assert choice["text"] == "Hello" and body["usage"]["completion_tokens"] == 0
    assert choice["logprobs"]["tokens"] == list("Hello")
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0, -1.0, -1.0, -1.0]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4]


async def test_log_probabilities_have_the_old_shape(client: Any) -> None:
    choice = (await ask(client, logprobs=1))["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["tokens"] == list(choice["text"]) and logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["text_offset"] == [0, 1, 2, 3] and logprobs["top_logprobs"][0] == {choice["text"][0]: -0.5}
    streamed = [c["choices"][0]["logprobs"] for c in await stream(client, logprobs=1)]
    assert [offset for part in streamed if part for offset in part["text_offset"]] == [0, 1, 2, 3]


async def test_prompt_logprobs_come_by_token_id(client: Any) -> None:
    rows = (await ask(client, prompt_logprobs=1))["choices"][0]["prompt_logprobs"]
    assert rows[0] is None and rows[1] == {"101": {"logprob": -1.0, "rank": 1, "decoded_token": "e"}}


async def test_an_empty_prompt_is_the_models_own_beginning(client: Any) -> None:
    assert (await ask(client, prompt=""))["usage"]["prompt_tokens"] == 1


async def test_suffix_is_refused_where_the_model_has_no_tokens_for_it(client: Any) -> None:
    error = await refuse(client, suffix="tail")
    assert error["param"] == "suffix" and "middle" in error["message"]


async def test_suffix_becomes_the_models_own_form_and_stops_at_its_end_tokens(
    serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "fim", FimTokens(prefix=1, suffix=2, middle=3, pad=4))
    client = await serve()
    body = {"prompt": "<a>", "suffix": "b", "max_tokens": 1}
    answer = (await client.post("/v1/completions", json=body)).json()
    by_hand = [1, *b"<a>", 2, *b"b", 3]
    same = (await client.post("/v1/completions", json={"prompt": by_hand, "max_tokens": 1})).json()
    assert answer["usage"]["prompt_tokens"] == len(by_hand) == 7
    assert same["usage"]["prompt_tokens_details"]["cached_tokens"] == 4, "one whole block of the same tokens"
    assert (await client.post("/v1/completions", json={**body, "prompt": [1]})).status_code == 400
    assert "insert" in (await client.get("/v1/models/fake")).json()["capabilities"]


async def test_malformed_prompts_are_refused_by_name(client: Any) -> None:
    for prompt in (None, [], 5, [1, "a"], [[]], [[1.5]], {"a": 1}, [99999], [-1], [[True]], ["x"] * 2000):
        assert "prompt" in (await refuse(client, prompt=prompt))["param"]


async def test_one_bad_prompt_of_several_queues_none(client: Any) -> None:
    error = await refuse(client, prompt=["fine", "x" * 300])
    assert error["code"] == "context_length_exceeded"
    assert 'vllm:num_requests_running{model_name="fake"} 0.0' in (await client.get("/metrics")).text


async def test_no_output_tokens_without_echo_is_refused(client: Any) -> None:
    assert (await refuse(client, max_tokens=0))["param"] == "max_tokens"


async def test_what_only_a_whole_answer_can_carry_is_refused_in_a_stream(client: Any) -> None:
    assert (await refuse(client, stream=True, prompt_logprobs=1))["param"] == "prompt_logprobs"
    assert (await refuse(client, stream=True, echo=True, logprobs=1))["param"] == "echo"


async def test_of_the_answers_drawn_the_likeliest_come_back(client: Any) -> None:
    drawn = {"temperature": 1.5, "seed": 3, "max_tokens": 6, "logprobs": 0}
    every = await ask(client, n=4, **drawn)
    best = await ask(client, n=2, best_of=4, **drawn)
    ranked = sorted(every["choices"], key=lambda c: -sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["tokens"]))
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for choice in ranked[:2]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"], "all that were drawn are counted"
    assert (await refuse(client, n=3, best_of=2))["param"] == "best_of"


async def test_a_beam_search_gives_as_many_answers_as_asked_streamed_or_not(client: Any) -> None:
    asked = {"use_beam_search": True, "beam_width": 3, "n": 2, "max_tokens": 6}
    whole = await ask(client, **asked)
    texts = [choice["text"] for choice in whole["choices"]]
    assert len(set(texts)) == 2 and all(choice["finish_reason"] in ("stop", "length") for choice in whole["choices"])
    streamed = {0: "", 1: ""}
    for chunk in await stream(client, **asked):
        for choice in chunk["choices"] if isinstance(chunk, dict) else ():
            streamed[choice["index"]] += choice["text"]
    assert list(streamed.values()) == texts
    error = await refuse(client, use_beam_search=True, beam_width=2, logprobs=1)
    assert error["param"] == "logprobs" and "beam search" in error["message"]
    assert (await refuse(client, use_beam_search=True, beam_width=2, n=3))["param"] == "beam_width"
