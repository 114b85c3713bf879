"""Refusals: which status, which field, which words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.text import limits

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]
ALARMING = ("exceeds", "too long", "max_tokens", "context")
"""Clients cut their history when an error holds one of these."""


async def refused(client: Any, fields: dict[str, Any] | bytes, path: str = CHAT, status: int = 400) -> dict[str, Any]:
    content = {"content": fields} if isinstance(fields, bytes) else {"json": {"messages": MESSAGES, **fields}}
    response = await client.post(path, headers={"content-type": "application/json"}, **content)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] is None or isinstance(error["code"], str)
    if error["code"] != "context_length_exceeded":
        assert not [word for word in ALARMING if word in error["message"].lower()], error["message"]
    return error


BAD_NUMBERS = {
    "temperature": (-0.1, 101, "1", True, [1], {}),
    "top_p": (-0.1, 1.1, "x"),
    "top_k": (-2, 1.5, 2**40, "x"),
    "min_p": (-0.1, 1.1),
    "presence_penalty": (-2.1, 2.1, "x"),
    "frequency_penalty": (-2.1, 2.1),
    "repetition_penalty": (0, -1, 1e-57, 101),
    "max_tokens": (0, -1, 1.5, 2**40, 10**30, "5", True),
    "max_completion_tokens": (0, -5),
    "min_tokens": (-1, 2**40),
    "n": (0, -1, 129, 1.5),
    "seed": (2**63, -(2**63) - 1, 1.5, "x"),
    "top_logprobs": (-1, 21, 0.5),
    "prompt_logprobs": (-1, 21),
    "priority": (2**31, "x"),
    "num_ctx": (0, -1),
    "stop_token_ids": ([-1], ["x"], [2**40], [1000]),
    "logit_bias": ({"5": 101}, {"5": -101}, {"x": 1}, {"5": "x"}, {"-1": 1}, {"1000": 1}, [1]),
    "stop": (5, [5], {"a": 1}),
    "stream": ("yes", 1),
    "stream_options": ({"include_usage": "x"}, 5),
    "model": (5,),
    "cache_salt": (5,),
    "tools": ("x", [5]),
}


@pytest.mark.parametrize("field", BAD_NUMBERS)
async def test_a_value_out_of_range_or_of_the_wrong_kind_names_its_field(client: Any, field: str) -> None:
    for value in BAD_NUMBERS[field]:
        error = await refused(client, {field: value})
        assert error["param"].startswith(field), (value, error)
        assert error["type"] == "invalid_request_error"


async def test_a_message_names_its_field_unless_clients_would_take_it_for_a_full_window(client: Any) -> None:
    for field in ("max_completion_tokens", "max_output_tokens", "min_tokens", "n"):
        assert (await refused(client, {field: -1}))["message"].startswith(f"`{field}`: ")
    assert (await refused(client, {"max_tokens": 0}))["message"].startswith("The most tokens to produce: ")


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "presence_penalty", "repetition_penalty"])
async def test_numbers_that_are_not_finite_name_their_field(client: Any, field: str, literal: str) -> None:
    raw = b'{"messages": [{"role": "user", "content": "Hi"}], "%b": %b}' % (field.encode(), literal.encode())
    assert (await refused(client, raw))["param"] == field


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"5", b"null", b'"x"', b"{}", b"\xff\xfe", b'{"messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"],
    ids=["empty", "cut", "list", "number", "null", "text", "no fields", "not utf-8", "deep"],
)
async def test_a_body_that_is_no_request_is_a_400(client: Any, body: bytes) -> None:
    await refused(client, body)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "Hello",
        [5],
        [{}],
        [{"role": 5}],
        [{"role": "alien", "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": [5]}],
    ],
)
async def test_messages_that_no_template_could_take_are_a_400(client: Any, messages: Any) -> None:
    assert (await refused(client, {"messages": messages}))["param"].startswith("messages")


@pytest.mark.parametrize(
    "field, value",
    [
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}),
        ("response_format", "json"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("function_call", {"name": "f"}),
        ("structured_outputs", {"regex": "a+"}),
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a+"),
        ("guided_choice", ["a", "b"]),
        ("guided_grammar", "root ::= 'a'"),
        ("grammar", "root ::= 'a'"),
        ("json_schema", {"type": "object"}),
        ("structural_tag", {"x": 1}),
        ("allowed_token_ids", [1, 2]),
        ("bad_words", ["no"]),
        ("logits_processors", ["x.y"]),
        ("truncate_prompt_tokens", 5),
        ("guided_json", {}),
        ("json_schema", {}),
        ("format", "json"),
        ("format", {}),
        ("format", {"type": "object"}),
        ("modalities", ["text", "audio"]),
    ],
)
async def test_a_demand_that_nothing_enforces_is_refused_by_name(client: Any, field: str, value: Any) -> None:
    error = await refused(client, {field: value})
    assert error["param"] == field and "not available yet" in error["message"]


async def test_a_responses_shaped_format_is_refused_too(client: Any) -> None:
    text = {"format": {"type": "json_schema", "schema": {}}}
    for fields in ({"messages": None, "input": "Hi", "text": text}, {"text": text}):
        assert (await refused(client, fields))["param"] == "response_format"


async def test_template_variables_may_have_any_name(client: Any) -> None:
    kwargs = {"self": 1, "tools": 2, "messages": 3, "class": 4}
    body = {"messages": MESSAGES, "max_tokens": 1, "chat_template_kwargs": kwargs}
    assert (await client.post(CHAT, json=body)).status_code == 200


async def test_a_missing_file_names_no_folder_of_this_machine(client: Any) -> None:
    error = (await client.get("/static/nothing.js")).json()["error"]
    assert error["message"] == "There is no such file."


async def test_the_log_says_which_stream_ended_with_which_error(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve()
    client.server.runner.fail_next = True
    response = await client.post(CHAT, json={"messages": MESSAGES, "stream": True})
    (line,) = [record.getMessage() for record in caplog.records if record.name == "app.sse"]
    assert response.headers["x-request-id"] in line and CHAT in line
    message = json.loads(response.text.split("\n\n")[-2].removeprefix("data: "))["error"]["message"]
    assert message.split(".")[0] in line


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_above_the_window_has_the_message_that_clients_parse(client: Any, stream: bool) -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 400}], "stream": stream}
    n_tokens = (await client.post("/tokenize", json=fields)).json()["count"]
    error = await refused(client, fields)
    assert (
        error["type"] == "invalid_request_error" and error["code"] == "context_length_exceeded" and error["param"] == "messages"
    )
    assert error["message"] == (
        f"This model's maximum context length is 256 tokens. However, your messages resulted in {n_tokens} tokens. "
        "Please reduce the length of the messages."
    )


async def test_a_prompt_that_can_never_fit_is_refused_without_being_tokenised(client: Any) -> None:
    text = "x" * 16 * 300
    encoded = client.server.engine.tokenizer.encoded
    encoded.clear()
    for path, fields in (
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/v1/completions", {"prompt": ["a", text]}),
        ("/v1/completions", {"prompt": "a", "suffix": text}),
    ):
        error = await refused(client, fields, path)
        assert error["code"] == "context_length_exceeded"
        assert "maximum context length is 256 tokens. However, your messages resulted in at least 30" in error["message"]
    assert encoded == []
    assert (await client.post("/tokenize", json={"prompt": text})).json()["count"] == len(text)


async def test_a_prompt_over_the_templates_limits_is_too_long_for_the_window(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_VALUE", 1000)
    text = "x " * 2500
    for content in (text, [{"type": "text", "text": text}]):
        error = await refused(client, {"messages": [*MESSAGES, {"role": "user", "content": content}]})
        assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
        assert "your messages resulted in at least 312 tokens" in error["message"]
    short = {"messages": [{"role": "user", "content": "x" * 1001}]}
    assert "template" in (await refused(client, short))["message"], "a limit met by a text that could have fitted"


async def test_a_prompt_above_num_ctx_is_refused_with_that_number(client: Any) -> None:
    fields = {"messages": [{"role": "user", "content": "x" * 100}], "num_ctx": 50}
    assert "maximum context length is 50 tokens" in (await refused(client, fields))["message"]


async def test_an_unknown_model_is_a_404_with_its_code(client: Any) -> None:
    error = await refused(client, {"model": "gpt-4o"}, status=404)
    assert error["code"] == "model_not_found" and error["param"] == "model" and "fake" in error["message"]
    assert (await client.get("/v1/models/gpt-4o")).status_code == 404


async def test_unknown_paths_and_wrong_methods_have_the_same_shape(client: Any) -> None:
    for method, path, status in (("GET", "/v1/nothing", 404), ("DELETE", "/v1/models", 405)):
        response = await client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_full_queue_is_a_503_with_a_time_to_come_back(serve: Any) -> None:
    client = await serve(step_s=0.02, engine={"max_waiting": 1, "max_num_seqs": 1})
    prompts = ["a", "b", "c"]
    response = await client.post("/v1/completions", json={"prompt": prompts, "max_tokens": 200})
    assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
    assert response.json()["error"]["code"] == "queue_full"


async def test_a_failed_step_is_a_500_that_is_not_worth_repeating(serve: Any) -> None:
    client = await serve()
    client.server.runner.fail_next = True
    response = await client.post(CHAT, json={"messages": MESSAGES})
    assert response.status_code == 500 and response.headers["x-should-retry"] == "false"
    assert response.json()["error"]["code"] == "generation_failed"


async def test_a_failure_after_the_headers_is_an_error_event_and_the_end(serve: Any) -> None:
    client = await serve()
    client.server.runner.fail_next = True
    response = await client.post(CHAT, json={"messages": MESSAGES, "stream": True})
    assert response.status_code == 200
    last = response.text.split("\n\n")[-2]
    assert last.startswith('data: {"error":{"message":') and '"code":"generation_failed"' in last
    whole = await client.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2})
    assert whole.status_code == 200


async def test_a_body_above_the_limit_is_refused_before_it_is_parsed(client: Any) -> None:
    response = await client.post(CHAT, content=b" " * (65 << 20), headers={"content-type": "application/json"})
    assert response.status_code == 413 and response.json()["error"]["code"] == "request_too_large"
