"""Where a recurrent state is kept for others: it cannot be cut back, so what is not kept on the way must be computed again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

INTERVAL_TOKENS = 512
"""A prompt's state is kept at least so often, while there is room for it."""
TURNS = 3
"""Of a conversation, besides the first one: the ends of its last turns, from which it may branch or go on."""


def borders(token_ids: Sequence[int], n_prompt: int, turn_ends: Collection[int], block_size: int, most: int) -> tuple[int, ...]:
    """Ends of blocks, in tokens and rising, at which a prompt's state is kept: of about `most` or fewer.

    The last one before the end of the prompt, so that the same prompt is found again; the end of the first turn, which is the
    system prompt where there is one, and of the last TURNS (turn_ends: ids that end a turn); and one for every
    INTERVAL_TOKENS, or more where that would be too many.
    """
    chosen = {(n_prompt - 1) // block_size * block_size}
    ends = [i + 1 for i in range(n_prompt) if token_ids[i] in turn_ends]
    chosen |= {end // block_size * block_size for end in (*ends[:1], *ends[-TURNS:])}
    interval = interval_tokens(block_size)
    while n_prompt // interval > most - len(chosen) and interval < n_prompt:
        interval *= 2
    chosen |= set(range(interval, n_prompt, interval))
    return tuple(sorted(border for border in chosen if 0 < border < n_prompt))


def interval_tokens(block_size: int) -> int:
    """INTERVAL_TOKENS in whole blocks."""
    return max(1, INTERVAL_TOKENS // block_size) * block_size
