"""The types that travel through the engine: requests, sequences, step plans, step results and events.

A `Sequence` is the only truth about a running answer. Words: *computed* (its KV exists), *scheduled* (in this
step's plan), *committed* (accepted into the sequence), *emitted* (sent to the client).

What is made for each sequence of each step is a Struct, which is made several times faster than a frozen dataclass.
"""

from __future__ import annotations

import enum
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    import torch

    from engine.text.output import OutputText


@dataclass(slots=True)
class SamplingParams:
    """How tokens are drawn and when an answer ends. Defaults are OpenAI's."""

    max_tokens: int | None = None
    """Most tokens to produce; None means until an end token or the end of the window."""
    min_tokens: int = 0
    """No end token, stop token id or stop string ends the answer before this many tokens were produced."""
    temperature: float = 1.0
    """0 is greedy, and so is anything below 0.00001."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps the whole vocabulary."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    """Draws depend on (seed, choice, position) only; None picks a fresh seed."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    """None: no log probabilities. k: of the chosen token and of the k likeliest ones."""
    prompt_logprobs: int | None = None
    n: int = 1
    """Choices that share one prefill."""
    best_of: int | None = None
    """Answers drawn, of which the n with the highest mean log probability are returned; they come when all have ended."""
    beam_width: int = 0
    """Beams of a beam search, of which the n best are returned when it is over; 0 draws. It draws nothing, so temperature, top_p,
    top_k, min_p and seed play no part."""
    length_penalty: float = 1.0
    """Of a beam search: answers compete by summed log probability over length to this power."""
    early_stopping: bool = False
    """Of a beam search: over as soon as beam_width answers are finished, even if others could still be better."""

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            self.stop = (self.stop,)


@dataclass(slots=True, frozen=True)
class TokenLogprob:
    """Log probability of one token under the model's own distribution (before temperature and penalties)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log probability), likeliest first."""


@dataclass(slots=True)
class Request:
    """One client request. `uid` is given by the engine and never reused; `request_id` is the client's."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    cache_salt: str = ""
    priority: int = 0
    """Lower runs earlier; equal priorities are first come, first served."""
    pins: bool = False
    """Keep the prompt's full blocks in the cache when the request has ended on its own, until they are unpinned by its uid."""
    uid: int = -1
    arrival_s: float = field(default_factory=time.monotonic)


class Status(enum.Enum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    """Waiting again, after its blocks were taken back."""
    FINISHED = "finished"


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class PutAside(Struct, frozen=True):
    """The last block of a swapped-out sequence, which holds less than it could, under a key of its own."""

    key: bytes
    n_computed: int
    """Tokens of the sequence whose KV existed."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One running answer: its tokens, how far their KV is computed, and the blocks that hold it."""

    request: Request
    index: int
    """Which of the request's n choices this is."""
    token_ids: list[int]
    n_prompt: int
    seed: int
    max_tokens: int
    """Resolved limit of produced tokens: fits the window."""
    end_ids: frozenset[int]
    """Token ids that end the answer (end-of-generation ids unless ignore_eos, plus stop_token_ids)."""
    text: OutputText
    status: Status = Status.WAITING
    n_computed: int = 0
    n_cached: int = 0
    """Prompt tokens that the first admission found in the prefix cache."""
    n_from_host: int = 0
    n_from_disk: int = 0
    """Of those: that only host memory had, and that a connector brought."""
    tables: list[list[int]] = field(default_factory=list)
    """Of each KV group the ids of its blocks, -1 for those behind the window; none while it waits. A table is only ever
    appended to or loses what is behind the window; any other change makes a new list, so that who copied it need not look
    again."""
    block_keys: list[bytes] = field(default_factory=list)
    """Chained keys of the full blocks of `token_ids`, grown as tokens are committed."""
    n_published: int = 0
    """Leading blocks whose keys are in the cache's index."""
    announced: list[int] = field(default_factory=list)
    """Numbers of the blocks that are announced as being computed, so that others wait for them; the next one last."""
    borders: tuple[int, ...] = ()
    """Of a model with a recurrent state: tokens after which it is kept for others, rising."""
    last_state: bytes | None = None
    """Key of the state that is kept of an answer until there is a later one."""
    fetched: bool = False
    """Whether a connector was asked for blocks of it, which happens once."""
    put_aside: PutAside | None = None
    """What a preemption kept of a block that is not full."""
    generation: int = 0
    """Raised at each preemption; a result of an older generation is dropped."""
    prompt_logprobs: list[TokenLogprob | None] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    n_preemptions: int = 0
    logprob_sum: float = 0.0
    """Of the tokens produced, where log probabilities were asked for."""
    penalty_state: Any = None
    """The sampler's counts of `token_ids`, where the request has penalties; of no concern to others."""

    @property
    def n_output(self) -> int:
        return len(self.token_ids) - self.n_prompt

    @property
    def n_wanted(self) -> int:
        """Tokens whose KV does not exist yet: the rest of a prefill, or the one of a decode."""
        return len(self.token_ids) - self.n_computed

    def replace_block(self, group: int, i: int, block_id: int) -> list[int]:
        """Returns the new table."""
        table = self.tables[group]
        self.tables[group] = [*table[:i], block_id, *table[i + 1 :]]
        return self.tables[group]


class Entry(Struct, frozen=True):
    """A sequence's share of a step: tokens start .. start + n_query, whose last n_logits rows are needed as logits.

    n_logits is 0 (a chunk in mid-prompt), 1 (decode, end of prefill) or n_query (prompt logprobs).
    `samples` says that the last row draws a token.
    """

    seq: Sequence
    start: int
    n_query: int
    n_logits: int
    samples: bool
    generation: int


class Moves(Struct, frozen=True):
    """Copies of whole blocks of one KV group, done in the order of the fields."""

    demotions: tuple[tuple[int, int], ...] = ()
    """(block, host slot)"""
    promotions: tuple[tuple[int, int], ...] = ()
    """(host slot, block)"""
    copies: tuple[tuple[int, int], ...] = ()
    """(source block, destination block)"""

    def __bool__(self) -> bool:
        return bool(self.demotions or self.promotions or self.copies)


class StepPlan(Struct, frozen=True):
    """What one step computes. `moves`, one for each KV group, are done before anything is written."""

    entries: tuple[Entry, ...]
    preempted: tuple[Sequence, ...]
    moves: tuple[Moves, ...] = ()
    stuck: Sequence | None = None
    """A waiting sequence for which there will never be room, or not beside the beams of its search that wait for it."""

    @property
    def n_tokens(self) -> int:
        return sum(entry.n_query for entry in self.entries)


@dataclass(slots=True)
class StepInputs:
    """A plan as tensors, as the layers of one KV group see it. n = tokens of the step, s = sequences, all on the model's device.

    Flat token rows are in entry order; entry i owns rows query_starts[i] .. query_starts[i + 1].
    """

    token_ids: torch.Tensor
    """int64 [n]"""
    positions: torch.Tensor
    """int64 [n]"""
    query_starts: torch.Tensor
    """int32 [s + 1]"""
    context_lens: torch.Tensor
    """int32 [s]: tokens with KV once this step has run (start + n_query)."""
    slots: torch.Tensor
    """int64 [n]: block id * block size + offset where each token's K and V go; unused where the group has a state."""
    block_tables: torch.Tensor
    """int32 [s, most blocks of a sequence], padded with -1; [s, 1] where the group has a state. Behind the window: any."""
    logit_rows: torch.Tensor
    """int64 [draws]: the last row of each entry that samples."""


class Sampled(Struct, frozen=True):
    """What a step produced for one entry: accepted token ids (none in mid-prompt) and log probabilities if asked."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    """One for each logit row that predicts a prompt token: row at position p speaks of token p + 1."""


class StepResult(Struct, frozen=True):
    """Parallel to the plan's entries."""

    sampled: tuple[Sampled, ...]


@dataclass(slots=True, frozen=True)
class Started:
    """The request was admitted for the first time: its prefill begins."""

    uid: int
    n_prompt: int
    n_cached: int
    queued_s: float


class Delta(Struct, frozen=True):
    """New text of one choice. Text can be empty while characters or a possible stop string are held back."""

    uid: int
    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    """Set on a choice's last delta."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended the choice; None for an ordinary end token."""


@dataclass(slots=True, frozen=True)
class Usage:
    n_prompt: int
    n_cached: int
    n_output: int
    """Over all choices."""
    n_preemptions: int
    queued_s: float
    ttft_s: float | None
    """None when no token was produced."""
    total_s: float


@dataclass(slots=True, frozen=True)
class Finished:
    """The one terminal event of a request: all choices ended, or it was aborted, or it failed (`error` says why)."""

    uid: int
    reason: FinishReason
    """STOP when every choice ended on its own (each choice's Delta has its own reason), else ABORT or ERROR."""
    usage: Usage
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    error: str | None = None


Event = Started | Delta | Finished
