"""StopStrings: finds stop strings in text that arrives in pieces, holding back what could still become one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache


class _Automaton:
    """Aho-Corasick automaton over characters, never changed once built: choices and requests share it.

    A state is a number: the longest suffix of the text so far that begins some stop string; 0 is the start. Failure
    links are followed while matching, so memory is linear in the stop strings' total length, and all of it is numbers
    in flat tables, which the garbage collector need not walk.
    """

    __slots__ = ("depths", "fallbacks", "lengths", "steps")

    def __init__(self, stops: Iterable[str]) -> None:
        self.steps: dict[int, int] = {}
        """state << 21 | code point -> state one character deeper."""
        self.depths = array("l", [0])
        """Characters held back in each state."""
        self.lengths = array("l", [0])
        """Length of the longest stop string that ends in each state; 0 for none."""
        for stop in stops:
            self._add(stop)
        self.fallbacks = array("l", [0]) * len(self.depths)
        """State of the longest proper suffix."""
        self._link()

    def _add(self, stop: str) -> None:
        state = 0
        for depth, char in enumerate(stop, 1):
            after = self.steps.setdefault(state << 21 | ord(char), len(self.depths))
            if after == len(self.depths):
                self.depths.append(depth)
                self.lengths.append(0)
            state = after
        self.lengths[state] = len(stop)

    def _link(self) -> None:
        """Shallow states first: a fallback is shallower than its state."""
        for key, state in sorted(self.steps.items(), key=lambda item: self.depths[item[1]]):
            parent, code = key >> 21, key & 0x1FFFFF
            if parent:
                self.fallbacks[state] = self.after(self.fallbacks[parent], code)
            self.lengths[state] = self.lengths[state] or self.lengths[self.fallbacks[state]]

    def after(self, state: int, code: int) -> int:
        """The state that a code point leads to; over a whole text, about two look-ups per character."""
        steps = self.steps
        while (deeper := steps.get(state << 21 | code)) is None:
            if not state:
                return 0
            state = self.fallbacks[state]
        return deeper


@lru_cache(maxsize=8)
def _automaton(stops: tuple[str, ...]) -> _Automaton:
    return _Automaton(filter(None, stops))


class StopStrings:
    """Lets text through until one of `stops` is complete.

    The first stop string to be *completed*, character by character, ends the text; of two that end on the same
    character the longer wins. So the result does not depend on how the text was cut into tokens. Empty stop strings
    are ignored. The time per character does not grow with the number of stop strings, and equal `stops` share their
    table.
    """

    __slots__ = ("_automaton", "_held", "_include", "_state", "matched")

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._automaton = _automaton(tuple(stops))
        self._include = include
        self._state = 0
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text; nothing comes after it."""

    def push(self, text: str) -> str:
        """Text that is safe to emit now: cut exactly before a stop string (after it with `include`)."""
        if self.matched is not None:
            return ""
        automaton = self._automaton
        state, steps, lengths = self._state, automaton.steps, automaton.lengths
        for n_read, code in enumerate(map(ord, text), 1):
            # Most characters lead deeper or stay at the start: they are spared the call.
            deeper = steps.get(state << 21 | code)
            if deeper is None:
                if not state:
                    continue
                deeper = automaton.after(automaton.fallbacks[state], code)
            state = deeper
            if lengths[state]:
                whole = self._held + text[:n_read]
                n_before = len(whole) - lengths[state]
                self.matched = whole[n_before:]
                self._held = ""
                return whole if self._include else whole[:n_before]
        self._state = state
        text = self._held + text
        n_safe = len(text) - automaton.depths[state]
        self._held = text[n_safe:]
        return text[:n_safe]

    def flush(self) -> str:
        """The text held back at the end of the stream: the beginning of a stop string that never came."""
        held, self._held, self._state = self._held, "", 0
        return held
