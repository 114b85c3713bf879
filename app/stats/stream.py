"""The feed as server-sent events: `key` events with a KeyFrame, `delta` events with a Delta, as JSON.

A listener that reads too slowly holds only its own generator: when it comes back, the frames between are skipped and
it gets a key frame of the newest. No queue grows, and no other listener notices.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from app.stats.sampler import Sampler

KEY_PERIOD_S = 10.0

_encoder = msgspec.json.Encoder()


async def events(sampler: Sampler) -> AsyncIterator[bytes]:
    """One whole event per sample: a key frame first, after a gap and each KEY_PERIOD_S, deltas between."""
    seq = -1
    key_s = float("-inf")
    with sampler.listening():
        while (frame := await sampler.next_frame(seq)) is not None:
            delta = sampler.newest_delta() if frame.seq == seq + 1 and frame.time_s - key_s < KEY_PERIOD_S else None
            if delta is None:
                key_s = frame.time_s
            seq = frame.seq
            yield _event("key", seq, sampler.key_frame()) if delta is None else _event("delta", seq, delta)


def _event(name: str, seq: int, value: msgspec.Struct) -> bytes:
    return b"event: %b\nid: %d\ndata: %b\n\n" % (name.encode(), seq, _encoder.encode(value))
