"""What changed from one frame to the next."""

from __future__ import annotations

from app.stats.frames import Delta, Frame, Point
from app.stats.runs import diff

_SECTIONS = ("model", "models", "totals", "rates", "latency", "process", "n_hidden")


def delta(old: Frame, new: Frame, point: Point) -> Delta | None:
    """The step from `old` to `new`; None where only a key frame will do (a gap, another block pool, other permissions)."""
    if new.seq != old.seq + 1 or new.control != old.control:
        return None
    changes = {name: getattr(new, name) for name in _SECTIONS if getattr(new, name) != getattr(old, name)}
    if new.blocks is not old.blocks:
        patches = diff(old.blocks, new.blocks)
        if patches is None:
            return None
        if patches:
            changes["patches"] = patches
    before = {(row.uid, row.index): row for row in old.requests}
    changed = tuple(row for row in new.requests if before.get((row.uid, row.index)) != row)
    removed = tuple(before.keys() - {(row.uid, row.index) for row in new.requests})
    if changed:
        changes["changed"] = changed
    if removed:
        changes["removed"] = removed
    return Delta(seq=new.seq, time_s=new.time_s, age_s=new.age_s, point=point, **changes)
