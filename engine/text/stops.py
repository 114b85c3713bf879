"""StopStrings: finds stop strings in text that arrives in pieces, holding back what could still become one."""

from __future__ import annotations

from collections.abc import Iterable


class _State:
    """A node of the automaton: the longest suffix of the text so far that begins some stop string."""

    __slots__ = ("depth", "match", "next")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        """Characters held back in this state."""
        self.match: str | None = None
        """The longest stop string that ends here."""
        self.next: dict[str, _State] = {}
        """Transitions by character; any other character leads to the start."""


def _automaton(stops: Iterable[str]) -> _State:
    """Aho-Corasick automaton with its failure links resolved into transitions; the start state is returned."""
    start = _State(0)
    for stop in stops:
        state = start
        for char in stop:
            state = state.next.setdefault(char, _State(state.depth + 1))
        state.match = stop
    queue = [(child, start) for child in start.next.values()]
    for state, fallback in queue:
        if state.match is None:
            state.match = fallback.match
        queue += [(child, fallback.next.get(char, start)) for char, child in state.next.items()]
        state.next = {**fallback.next, **state.next}
    return start


class StopStrings:
    """Lets text through until one of `stops` is complete.

    The first stop string to be *completed*, character by character, ends the text; of two that end on the same
    character the longer wins. So the result does not depend on how the text was cut into tokens. Empty stop strings
    are ignored. Each push costs one dictionary lookup per character, whatever the number of stop strings.
    """

    __slots__ = ("_held", "_include", "_start", "_state", "matched")

    def __init__(self, stops: Iterable[str], *, include: bool = False) -> None:
        self._start = _automaton(stop for stop in stops if stop)
        self._include = include
        self._state = self._start
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text; nothing comes after it."""

    def push(self, text: str) -> str:
        """Text that is safe to emit now: cut exactly before a stop string (after it with `include`)."""
        if self.matched is not None:
            return ""
        state, start = self._state, self._start
        for n_read, char in enumerate(text, 1):
            state = state.next.get(char, start)
            if state.match is not None:
                self.matched = state.match
                whole = self._held + text[:n_read]
                self._held = ""
                return whole if self._include else whole[: len(whole) - len(state.match)]
        self._state = state
        text = self._held + text
        n_safe = len(text) - state.depth
        self._held = text[n_safe:]
        return text[:n_safe]

    def flush(self) -> str:
        """The text held back at the end of the stream: the beginning of a stop string that never came."""
        held, self._held, self._state = self._held, "", self._start
        return held
