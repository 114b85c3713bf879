"""A day's mix of requests replayed through the KV manager alone: how much of the prompts each way to evict finds again.

No model runs. Tokens are numbers; what matters is which prompts begin alike, their order, and how much room there is:
- a chat that grows by a question and an answer at a time, whose person reads and thinks in between;
- after each of its answers three side calls (title, tags, follow-up questions) with prompts of their own that nobody sends again;
- agents with a system prompt each, whose conversation grows until they begin a new task under the same system prompt;
- completions in the editor, each with a prompt of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine.kv.groups import KVGroup
from engine.kv.manager import KVManager
from engine.types import Request, SamplingParams, Sequence

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Call:
    kind: str
    """chat, side, agent or editor."""
    prompt: list[int]
    answer: list[int]


@dataclass(slots=True)
class Found:
    """Prompt tokens of one kind of call."""

    n_tokens: int = 0
    n_found: int = 0

    @property
    def share(self) -> float:
        return self.n_found / self.n_tokens if self.n_tokens else 0.0


@dataclass(slots=True)
class Result:
    kinds: dict[str, Found] = field(default_factory=dict)

    @property
    def all(self) -> Found:
        return Found(sum(found.n_tokens for found in self.kinds.values()), sum(found.n_found for found in self.kinds.values()))


def mix(seed: int = 0, n_turns: int = 60) -> list[Call]:
    """The calls in their order; the same for the same seed."""
    rng = random.Random(seed)

    def text(n: int) -> list[int]:
        return [rng.randrange(1 << 20) for _ in range(n)]

    def agent() -> Iterator[Call]:
        system = text(rng.randint(2500, 4000))
        while True:
            task = system + text(rng.randint(200, 800))
            while len(task) < 16_000:
                answer = text(rng.randint(50, 400))
                yield Call("agent", list(task), answer)
                task += answer + text(rng.randint(100, 1200))

    calls: list[Call] = []
    agents = [agent() for _ in range(2)]
    chat = text(800)
    for _ in range(n_turns):
        chat += text(rng.randint(20, 300))
        answer = text(rng.randint(100, 600))
        calls.append(Call("chat", list(chat), answer))
        chat += answer
        calls += [Call("side", text(rng.randint(600, 1500)), text(20)) for _ in range(3)]
        for one in agents:
            calls += [next(one) for _ in range(rng.randint(0, 3))]
        calls += [Call("editor", text(rng.randint(500, 1500)), text(30)) for _ in range(rng.randint(0, 6))]
    return calls


def waste(calls: list[Call], block_size: int) -> float:
    """Share of the room in the blocks of all calls, as they are at their ends, that holds no token."""
    lengths = [len(call.prompt) + len(call.answer) for call in calls]
    room = sum(-(-n // block_size) * block_size for n in lengths)
    return 1 - sum(lengths) / room


def replay(calls: list[Call], n_blocks: int, protected_share: float, block_size: int = BLOCK_SIZE) -> Result:
    """One call after the other, each with the whole cache to itself."""
    group = KVGroup(n_blocks=n_blocks)
    kv = KVManager((group,), block_size, enable_caching=True, extras={}, chunk=1 << 30, protected_share=protected_share)
    result = Result()
    for uid, call in enumerate(calls):
        request = Request("", call.prompt, SamplingParams(), uid=uid)
        seq = Sequence(request, 0, list(call.prompt), len(call.prompt), 0, 1, frozenset(), None)
        found = result.kinds.setdefault(call.kind, Found())
        found.n_tokens += seq.n_prompt
        if not kv.admit(seq, kv.match(seq), beside_others=False):
            continue
        found.n_found += seq.n_computed
        seq.token_ids += call.answer
        if kv.reserve(seq, len(seq.token_ids) - seq.n_computed):
            kv.finish_plan()
            seq.n_computed = len(seq.token_ids)
            kv.publish(seq)
        kv.forget(seq)
    return result
