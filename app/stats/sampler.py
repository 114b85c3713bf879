"""The sampler: one frozen frame four times a second while somebody listens, once a second for the history otherwise."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

from app.signal import Signal
from app.stats import compose, runs
from app.stats.answers import Answers
from app.stats.delta import delta
from app.stats.frames import HISTORY_S, Delta, Frame, KeyFrame, Point, RatesSection, Run, TotalsSection
from app.stats.process import ProcessMeter
from app.stats.rates import RateMeter
from app.stats.sources import Pool, Sources, joined
from engine.stats import EngineStats

_log = logging.getLogger(__name__)

PERIOD_S = 0.25
QUIET_PERIOD_S = 1.0
_PATIENCE_S = 0.1
"""Most time a sample waits for the engine before it shows older figures."""


class Sampler:
    """Owns the newest frame and the history. Listeners look at `frame` and wait for the next; nothing is queued for them."""

    def __init__(
        self,
        pool: Pool,
        *,
        control: str,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_offset_s = wall_clock() - clock()
        self._control = control
        self._answers = Answers(clock)
        self._sources = Sources(pool, self._answers, clock)
        self._rates = RateMeter()
        self._process = ProcessMeter()
        self._history: deque[Point] = deque()
        self._lock = asyncio.Lock()
        self._published = Signal()
        self._ending = False
        self._wanted = asyncio.Event()
        self.n_listeners = 0
        self._task: asyncio.Task[None] | None = None
        self._last_map: tuple[bytes, list[int], tuple[Run, ...]] = (b"", [], ())
        self._previous: Frame | None = None
        self._delta: Delta | None = None
        self._sampled_s = float("-inf")
        self.frame: Frame | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="stats sampler")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
            self._task = None
        await self._sources.close()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """While inside, samples come each PERIOD_S."""
        self.n_listeners += 1
        self._wanted.set()
        try:
            yield
        finally:
            self.n_listeners -= 1
            if not self.n_listeners:
                self._wanted.clear()

    async def next_frame(self, after_seq: int) -> Frame | None:
        """The newest frame above `after_seq`, once there is one; None when the server goes down."""
        while not self._ending and (self.frame is None or self.frame.seq <= after_seq):
            await self._published.wait()
        return None if self._ending else self.frame

    def end_feeds(self) -> None:
        """Let every listener go: a server that stops waits for its open responses."""
        self._ending = True
        self._published.notify()

    async def fresh_frame(self) -> Frame:
        """The newest frame, sampled now if it is older than PERIOD_S."""
        if self.frame is None or self._clock() - self._sampled_s >= PERIOD_S:
            await self.sample()
        return self.frame

    def key_frame(self) -> KeyFrame:
        """The newest frame with the history. There must be a frame."""
        return KeyFrame(frame=self.frame, history=tuple(self._history))

    def newest_delta(self) -> Delta | None:
        """The step from the frame before the newest; None where only a key frame will do. Made once for all listeners."""
        if self._delta is None and self._previous is not None and self.frame is not None:
            self._delta = delta(self._previous, self.frame, self._history[-1])
        return self._delta

    def abort(self, uid: int) -> bool:
        """Abort a request that waits or runs; False if there is none of this number."""
        return self._sources.abort(uid)

    async def sample(self) -> None:
        """Take a sample and publish its frame."""
        async with self._lock:
            await self._sources.poll(_PATIENCE_S)
            self._sampled_s = self._clock()
            self._previous, self._delta = self.frame, None
            self.frame = self._compose()
            self._remember(self.frame)
            self._published.notify()

    async def _run(self) -> None:
        while True:
            began_s = self._clock()
            try:
                await self.sample()
            except Exception:  # the feed outlives whatever it watches
                _log.exception("a sample of the statistics failed")
            rest_s = max(0.0, began_s + self._period_s - self._clock())
            if self.n_listeners:
                await asyncio.sleep(rest_s)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._wanted.wait(), rest_s)

    @property
    def _period_s(self) -> float:
        return PERIOD_S if self.n_listeners else QUIET_PERIOD_S

    def _compose(self) -> Frame:
        parts = self._sources.answered
        stats = joined([stats for _, stats in parts])
        models = self._sources.models()
        if stats is None:
            self._rates.clear()
        else:
            self._rates.add(stats)
        previous = self.frame
        requests, n_hidden = compose.rows(parts, self._answers, self._wall_offset_s, previous.requests if previous else ())
        return Frame(
            seq=previous.seq + 1 if previous else 1,
            time_s=round(self._sampled_s + self._wall_offset_s, 3),
            age_s=round(self._sources.age_s, 2),
            control=self._control,
            model=models[0],
            models=models,
            totals=compose.totals(stats) if stats else TotalsSection(),
            rates=self._rates.rates() if stats else RatesSection(),
            latency=self._answers.latency(),
            process=self._process.read(),
            requests=requests,
            n_hidden=n_hidden,
            blocks=self._map(stats),
        )

    def _map(self, stats: EngineStats | None) -> tuple[Run, ...]:
        """The run-length block map; the last one where nothing moved, because comparing is far cheaper than encoding."""
        states, owners = (stats.blocks, stats.owners) if stats else (b"", [])
        if states != self._last_map[0] or owners != self._last_map[1]:
            self._last_map = (states, owners, runs.encode(states, owners))
        return self._last_map[2]

    def _remember(self, frame: Frame) -> None:
        totals, rates = frame.totals, frame.rates
        n_blocks = max(totals.n_blocks, 1)
        self._history.append(
            Point(
                frame.time_s,
                rates.output_tok_s,
                rates.prompt_tok_s,
                totals.n_running,
                totals.n_waiting,
                round(totals.n_used / n_blocks, 4),
                round(totals.n_cached / n_blocks, 4),
            )
        )
        while self._history[0].time_s < frame.time_s - HISTORY_S:
            self._history.popleft()
