"""Prompts of a wanted length that differ, and share exactly the prefix they are meant to share."""

from __future__ import annotations

import random

# fmt: off
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money",
    "story", "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city",
    "community", "name", "president", "team", "minute", "idea", "body", "information", "back", "parent", "face", "others",
    "level", "office", "door", "health", "person", "art", "war", "history", "party", "result", "change", "morning",
    "reason", "research", "girl", "guy", "moment", "air", "teacher", "force", "education",
)
# fmt: on
"""Common nouns: one token each, with the space before, in the vocabularies people use."""
SENTENCE = 12


def text_of(n_words: int, rng: random.Random) -> str:
    """About `n_words` words in sentences; close to as many tokens."""
    words = [rng.choice(WORDS) for _ in range(n_words)]
    for start in range(0, n_words, SENTENCE):
        words[start] = words[start].capitalize()
    for stop in range(SENTENCE - 1, n_words, SENTENCE):
        words[stop] += "."
    return " ".join(words)


def conversation(index: int, *, prompt_words: int, prefix_words: int, seed: int) -> list[dict[str, str]]:
    """Messages of request `index`: a system prompt that all requests share, then text that only this one has."""
    messages = []
    if prefix_words:
        messages.append({"role": "system", "content": text_of(prefix_words, random.Random(seed))})
    own = text_of(max(prompt_words, 1), random.Random(f"{seed}/{index}"))
    messages.append({"role": "user", "content": f"{index}. {own} Tell a long story about this."})
    return messages
