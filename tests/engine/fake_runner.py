"""A runner without a model, whose KV memory is exact: each slot remembers which prefix was computed into it.

Reading a slot that holds anything but the sequence's own prefix is an AssertionError, so block sharing, copy-on-write,
eviction and preemption are checked at every step. The next token is a hash of all tokens before it (and of the seed
when temperature is not 0), so equal histories give equal answers whatever the schedule.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from itertools import accumulate
from typing import Any

from engine.errors import BrokenLogits
from engine.info import ModelInfo
from engine.kv.groups import KVGroup
from engine.text.pieces import Pieces
from engine.types import Entry, Moves, Sampled, Sequence, StepPlan, StepResult, TokenLogprob

END_ID = 256
VOCAB_SIZE = 257


class ByteTokenizer:
    """Token ids 0 to 255 are bytes, 256 ends an answer."""

    vocab_size = VOCAB_SIZE
    bos_id = None
    add_bos = False
    end_ids = frozenset({END_ID})
    special_ids = frozenset({END_ID})
    fim = None

    def __init__(self) -> None:
        self.pieces = Pieces(self.token_bytes)
        self.pieces_with_special = Pieces(lambda token_id: self.token_bytes(token_id) or b"<end>")

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int], *, skip_special: bool = True) -> str:
        return bytes(i for i in ids if i != END_ID).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == END_ID else bytes([token_id])

    def token_text(self, token_id: int) -> str:
        return "<end>" if token_id == END_ID else chr(token_id)


class FakeRunner:
    """`end_every` makes about one in so many draws the end token; `step_s` is how long a step takes.

    groups: as many KV groups as are wanted, of any kinds; else one of all tokens, of n_blocks and n_host_blocks.
    """

    block_bytes = 1 << 10

    def __init__(
        self,
        n_blocks: int,
        block_size: int,
        max_model_len: int,
        *,
        end_every: int = 0,
        step_s: float = 0.0,
        n_host_blocks: int = 0,
        groups: tuple[KVGroup, ...] = (),
    ) -> None:
        one = KVGroup(n_blocks=n_blocks, n_host_blocks=n_host_blocks, block_bytes=self.block_bytes)
        self.kv_groups = groups or (one,)
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.kv_extras: dict[str, str | int] = {"model": "fake"}
        self.end_every = end_every
        self.step_s = step_s
        self.fail_next = self.break_next = False
        self.blocks: list[list[list[int | None]]] = []
        """Of each group and block what it holds: the prefix before each of its tokens, or the one that made the state."""
        self.host: list[list[int | None]] = []
        for group in self.kv_groups:
            size = 1 if group.recurrent else block_size
            self.blocks.append([[None] * size for _ in range(group.n_blocks)])
            self.host += [[None] * size for _ in range(group.n_host_blocks)]

    def move(self, moves: tuple[Moves, ...]) -> None:
        for blocks, of_group in zip(self.blocks, moves, strict=True):
            for block_id, slot in of_group.demotions:
                self.host[slot][:] = self._as_held(blocks[block_id])
            for slot, block_id in of_group.promotions:
                blocks[block_id] = list(self.host[slot])
            for source, destination in of_group.copies:
                blocks[destination] = list(blocks[source])

    def _as_held(self, content: list[int | None]) -> list[int | None]:
        return content

    def execute(self, plan: StepPlan) -> StepResult:
        if self.step_s:
            time.sleep(self.step_s)
        for entry in plan.entries:
            self._write(entry)
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("the fake runner was told to fail")
        if self.break_next:
            self.break_next = False
            raise BrokenLogits([plan.entries[0].seq.request.uid])
        return StepResult(tuple(self._read(entry) for entry in plan.entries))

    @staticmethod
    def _prefixes(seq: Sequence, end: int) -> list[int]:
        """What the slot of each position holds: a digest of all tokens up to it."""
        return list(accumulate(seq.token_ids[:end], lambda before, token_id: hash((before, token_id)), initial=0))[1:]

    def _held(self, g: int, seq: Sequence, position: int) -> tuple[list[int | None], int]:
        """The block of a group that is to hold a position, and where in it."""
        block_id = seq.tables[g][position // self.block_size]
        assert block_id >= 0, "a block behind the window is asked for"
        return self.blocks[g][block_id], position % self.block_size

    def _write(self, entry: Entry) -> None:
        seq, start, end = entry.seq, entry.start, entry.start + entry.n_query
        prefixes = self._prefixes(seq, end)
        for g, group in enumerate(self.kv_groups):
            if group.recurrent:
                (block_id,) = seq.tables[g]
                before = self.blocks[g][block_id][0]
                assert start == 0 or before == prefixes[start - 1], (
                    f"request {seq.request.uid}: the state is that of another text"
                )
                self.blocks[g][block_id] = [prefixes[end - 1]]
                continue
            for position in range(start, end):
                block, at = self._held(g, seq, position)
                block[at] = prefixes[position]

    def _read(self, entry: Entry) -> Sampled:
        seq, end = entry.seq, entry.start + entry.n_query
        prefixes = self._prefixes(seq, end)
        for g, group in enumerate(self.kv_groups):
            first, size = max(0, entry.start - group.window + 1) if group.window else 0, self.block_size
            for i in range(first // size, -(-end // size)) if not group.recurrent else ():
                start, stop = max(first, i * size), min(end, (i + 1) * size)
                block, at = self._held(g, seq, start)
                assert block[at : at + stop - start] == prefixes[start:stop], (
                    f"request {seq.request.uid}: block {i} of its table holds the KV of something else"
                )
        prompt_logprobs = None
        if seq.prompt_logprobs is not None:
            positions = range(end - entry.n_logits + 1, min(end + 1, seq.n_prompt))
            prompt_logprobs = tuple(TokenLogprob(seq.token_ids[p], -1.0, 1) for p in positions)
        if not entry.samples:
            return Sampled(prompt_logprobs=prompt_logprobs)
        token_id = self.next_token(seq)
        logprobs = None
        if seq.request.params.logprobs is not None:
            top = self._likeliest(seq, seq.request.params.logprobs) if seq.request.params.beam_width else ()
            logprobs = (TokenLogprob(token_id, -0.5, 1, top),)
        return Sampled((token_id,), logprobs, prompt_logprobs)

    def _likeliest(self, seq: Sequence, n: int) -> tuple[tuple[int, float], ...]:
        """Different tokens, of which the end token is one of the first now and then."""
        draw = int.from_bytes(hashlib.sha256(repr(seq.token_ids).encode()).digest()[:8], "little")
        token_ids = [97 + (draw + 7 * i) % 26 for i in range(min(n, 26))]
        token_ids.insert(draw % 6, END_ID)
        return tuple((token_id, -0.1 * (i + 1) - (draw >> i) % 97 / 1000) for i, token_id in enumerate(token_ids[:n]))

    def next_token(self, seq: Sequence) -> int:
        history = (tuple(seq.token_ids), (seq.seed, seq.index) if seq.request.params.temperature > 0 else None)
        draw = int.from_bytes(hashlib.sha256(repr(history).encode()).digest()[:8], "little")
        if self.end_every and draw % self.end_every == 0 and seq.n_output >= seq.request.params.min_tokens:
            return END_ID
        return 97 + draw % 26


class SharingRunner(FakeRunner):
    """Its host memory can be read and filled by a real connector: each token's prefix is a number of 8 bytes."""

    def __init__(self, *args: Any, **knobs: Any) -> None:
        super().__init__(*args, **knobs)
        self.host = [array("q", [0] * self.block_size) for _ in range(self.kv_groups[0].n_host_blocks)]

    def _as_held(self, content: list[int | None]) -> Any:
        return array("q", [value or 0 for value in content])

    def buffers(self, slot: int) -> list[memoryview]:
        """Two pieces, as keys and values are."""
        whole = memoryview(self.host[slot]).cast("B")
        return [whole[:8], whole[8:]]


def fake_info(runner: FakeRunner) -> ModelInfo:
    return ModelInfo(
        name="fake",
        path="/nowhere/fake",
        family="fake",
        quantization="F32",
        dtype="float32",
        max_model_len=runner.max_model_len,
        n_vocab=VOCAB_SIZE,
        n_params=1,
        weights_bytes=4,
        kv_bytes=runner.n_blocks * runner.block_bytes,
        n_blocks=runner.n_blocks,
        block_size=runner.block_size,
        digest="fake",
        memory_note="",
    )
