"""Random requests made from the server's own OpenAPI document never make it fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from app.openai.checks import CONSTRAINTS
from tests.e2e.server import LiveServer

ENDLESS = "/api/stats/stream"
"""The feed never ends by itself."""


_DEEPER = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
}
"""Requests of these paths are sent a second time with a body that gets as far as the engine."""
_REFUSED = (
    "model", "logit_bias", "stop_token_ids", "best_of", "suffix", "tool_choice", "function_call", "use_beam_search", "modalities",
)  # fmt: skip


def _shortened(body: dict[str, Any]) -> dict[str, Any]:
    """Valid requests may ask for thousands of tokens; two say as much about the HTTP side."""
    limits = {name: 2 for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n")}
    short = {name: min(value, limits[name]) for name, value in body.items() if name in limits and type(value) is int}
    prompts = {"prompt": body["prompt"][:4]} if isinstance(body.get("prompt"), list) else {}
    return {**body, **short, **prompts, "max_tokens": short.get("max_tokens", body.get("max_tokens") or 2)}


def _deeper(body: dict[str, Any], valid: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in body.items() if name not in (*_REFUSED, *CONSTRAINTS, "response_format")}
    return {**kept, "min_tokens": 0, **valid}


def test_no_request_makes_the_server_fail(server: LiveServer) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/schema/openapi.json")
    statuses: dict[str, Counter[int]] = defaultdict(Counter)

    def send(case: Any) -> None:
        response = case.call(timeout=60)
        statuses[case.operation.label][response.status_code] += 1
        assert response.status_code < 500, (case.operation.label, case.body, response.status_code, response.text[:500])

    for operation in (result.ok() for result in schema.get_all_operations()):
        if operation.path == ENDLESS:
            continue

        @settings(
            max_examples=12,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def call(case: Any) -> None:
            if isinstance(case.body, dict):
                case.body = _shortened(case.body)
            send(case)
            if isinstance(case.body, dict) and case.operation.path in _DEEPER:
                case.body = _deeper(case.body, _DEEPER[case.operation.path])
                send(case)

        call()
    assert {"GET /v1/models", "POST /tokenize", "POST /detokenize", "GET /metrics"} <= statuses.keys()
    for path in _DEEPER:
        assert statuses[f"POST {path}"][200] > 3 and statuses[f"POST {path}"][400] > 3, statuses
    server.wait_idle()
