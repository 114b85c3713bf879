"""The state that key frames and deltas add up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from tui.feed.model import HISTORY_S, Delta, Frame, KeyFrame, Patch, Point, Run

_SECTIONS = ("model", "models", "totals", "rates", "latency", "process", "n_hidden")

_key_decoder = msgspec.json.Decoder(KeyFrame)
_delta_decoder = msgspec.json.Decoder(Delta)


class FeedState:
    """The newest frame and the history up to it."""

    def __init__(self) -> None:
        self.frame: Frame | None = None
        self.history: deque[Point] = deque()

    def apply(self, event: str, data: str) -> bool:
        """Take one event of the feed; True if the frame is newer now.

        A delta that does not follow the frame held is passed over, as are unknown events: the next key frame mends it.
        Raises msgspec.ValidationError or msgspec.DecodeError for data of another protocol.
        """
        match event:
            case "key":
                key = _key_decoder.decode(data)
                self.frame, self.history = key.frame, deque(key.history)
                return True
            case "delta":
                return self._apply_delta(_delta_decoder.decode(data))
            case _:
                return False

    def _apply_delta(self, delta: Delta) -> bool:
        frame = self.frame
        if frame is None or delta.seq != frame.seq + 1:
            return False
        changes = {name: value for name in _SECTIONS if (value := getattr(delta, name)) is not UNSET}
        if delta.changed or delta.removed:
            rows = {row.key: row for row in frame.requests} | {row.key: row for row in delta.changed}
            for key in delta.removed:
                rows.pop(key, None)
            changes["requests"] = tuple(rows[key] for key in sorted(rows))
        if delta.patches:
            changes["blocks"] = patched(frame.blocks, delta.patches)
        self.frame = msgspec.structs.replace(frame, seq=delta.seq, time_s=delta.time_s, age_s=delta.age_s, **changes)
        if delta.point is not UNSET:
            self.history.append(delta.point)
            while self.history[0].time_s < delta.point.time_s - HISTORY_S:
                self.history.popleft()
        return True


def patched(runs: Sequence[Run], patches: Sequence[Patch]) -> tuple[Run, ...]:
    """`runs` with `patches` (ascending, not overlapping) laid over them; neighbours alike are merged. O(runs + patches)."""
    merged: list[Run] = []

    def put(state: int, owner: int, count: int) -> None:
        if count <= 0:
            return
        if merged and merged[-1].state == state and merged[-1].owner == owner:
            count += merged.pop().count
        merged.append(Run(state, owner, count))

    position = n_patch = 0
    for run in runs:
        end = position + run.count
        while position < end:
            patch = patches[n_patch] if n_patch < len(patches) else None
            if patch is None or patch.start >= end:
                put(run.state, run.owner, end - position)
                position = end
            elif position < patch.start:
                put(run.state, run.owner, patch.start - position)
                position = patch.start
            else:
                stop = min(end, patch.start + patch.count)
                put(patch.state, patch.owner, stop - position)
                position = stop
                if stop == patch.start + patch.count:
                    n_patch += 1
    return tuple(merged)
