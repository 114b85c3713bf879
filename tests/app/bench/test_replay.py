"""The replayed mix: the same for a seed, and found again by the cache more often than least recent use alone would."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from app.bench import replay
from app.bench.replay import Call
from app.cli import cli
from engine.kv.blocks import PROTECTED_SHARE


def test_a_mix_is_the_same_for_a_seed_and_grows_its_prefixes() -> None:
    calls = replay.mix(3, n_turns=5)
    assert calls == replay.mix(3, n_turns=5) != replay.mix(4, n_turns=5)
    chat = [call for call in calls if call.kind == "chat"]
    assert len(chat) == 5
    for before, after in zip(chat, chat[1:], strict=False):
        known = before.prompt + before.answer
        assert after.prompt[: len(known)] == known
    assert {call.kind for call in calls} == {"chat", "side", "agent", "editor"}


def test_with_room_for_everything_all_that_was_sent_before_is_found() -> None:
    calls = replay.mix(0, n_turns=6)
    result = replay.replay(calls, 100_000, 0.0)
    assert result.kinds["side"].n_found == result.kinds["editor"].n_found == 0, "nobody repeats these"
    chat = [call for call in calls if call.kind == "chat"]
    known = [len(call.prompt) + len(call.answer) for call in chat[:-1]]
    assert 0 <= sum(known) - result.kinds["chat"].n_found < 2 * replay.BLOCK_SIZE * len(chat)


def test_calls_that_nobody_repeats_do_not_push_out_the_conversation() -> None:
    """Open WebUI's case: a long chat, calls for its title and tags, the chat again."""
    chat, calls = list(range(100 * replay.BLOCK_SIZE)), []
    for turn in range(10):
        calls.append(Call("chat", list(chat), [10_000 + turn]))
        chat += [10_000 + turn]
        calls += [Call("side", [20_000 + 10 * turn + i] * (30 * replay.BLOCK_SIZE), [0]) for i in range(3)]
    recent, ours = (replay.replay(calls, 140, share).kinds["chat"].share for share in (0.0, PROTECTED_SHARE))
    assert ours > 0.8 and recent < 0.5


def test_the_command_compares_both_at_several_sizes(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    result = CliRunner().invoke(cli, ["bench", "cache", "--turns", "8", "--json", str(path)], catch_exceptions=False)
    rows = json.loads(path.read_text())["rows"]
    assert [row["evicted_by"] for row in rows[:2]] == ["least recent use", "Pagewell"] and len(rows) == 12
    assert len(result.stdout.splitlines()) == 14
