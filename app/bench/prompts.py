"""Prompts of a wanted length, in plain English, that differ, and share exactly the prefix they are meant to share."""

from __future__ import annotations

import random

# fmt: off
PEOPLE = (
    "teacher", "baker", "captain", "doctor", "farmer", "gardener", "judge", "lawyer", "miller", "nurse", "painter", "pilot",
    "poet", "sailor", "singer", "soldier", "student", "tailor", "writer", "engineer", "fisherman", "librarian", "neighbour",
    "stranger", "child", "mayor",
)
TRAITS = (
    "old", "young", "quiet", "clever", "tired", "honest", "careful", "lonely", "proud", "famous", "patient", "curious", "kind",
    "stubborn", "cheerful", "nervous", "retired", "poor", "wealthy", "brave",
)
DEEDS = (
    "found", "sold", "repaired", "carried", "painted", "lost", "bought", "remembered", "described", "hid", "borrowed", "wanted",
    "opened", "measured", "cleaned", "copied", "returned", "promised", "studied", "saved",
)
THINGS = (
    "lamp", "boat", "letter", "clock", "map", "garden", "bridge", "violin", "book", "table", "window", "coat", "mirror", "basket",
    "bottle", "engine", "picture", "ladder", "bell", "key", "wagon", "stone", "radio", "camera", "house", "ring",
)
LOOKS = (
    "small", "large", "broken", "wooden", "blue", "green", "heavy", "golden", "strange", "empty", "new", "dusty", "round",
    "silver", "simple", "beautiful", "narrow", "warm", "wet", "red",
)
PLACES = (
    "market", "village", "harbour", "station", "school", "church", "library", "forest", "river", "museum", "hospital", "kitchen",
    "office", "theatre", "mountain", "island", "castle", "factory", "hotel", "field",
)
TIMES = (
    "in the morning", "before the winter", "after the war", "last summer", "during the storm", "at midnight", "on a Sunday",
    "in the spring", "every Friday", "when the rain stopped", "many years ago", "after a long journey", "while the others slept",
    "before anyone noticed",
)
SENTENCES = (
    "The {trait} {person} {deed} a {look} {thing} near the {place} {time}.",
    "A {person} from the {place} {deed} the {thing} and told the {trait} {other} about it.",
    "Nobody in the {place} knew why the {person} {deed} that {look} {thing} {time}.",
    "It was the {other} who said that the {trait} {person} {deed} {number} {look} {thing}s.",
    "When the {person} reached the {place}, the {other} already {deed} the {thing}.",
    "In the {look} {place} there were {number} {thing}s, and the {person} {deed} them all {time}.",
)
# fmt: on
NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty", "forty")


def text_of(n_words: int, rng: random.Random) -> str:
    """`n_words` words of English sentences, the last one perhaps cut short. Another state of `rng` gives another text."""
    words: list[str] = []
    while len(words) < n_words:
        words += _sentence(rng).split()
    return " ".join(words[:n_words])


def conversation(
    index: int, *, prompt_words: int, prefix_words: int, seed: int | str, prefix_seed: int | str | None = None
) -> list[dict[str, str]]:
    """Messages of request `index`: a system prompt that all of one prefix_seed (else seed) share, then text of its own."""
    messages = []
    if prefix_words:
        shared = random.Random(f"{seed if prefix_seed is None else prefix_seed}/shared")
        messages.append({"role": "system", "content": text_of(prefix_words, shared)})
    own = text_of(max(prompt_words, 1), random.Random(f"{seed}/{index}"))
    messages.append({"role": "user", "content": f"{own} Go on with this story, as long as you can."})
    return messages


def _sentence(rng: random.Random) -> str:
    return rng.choice(SENTENCES).format(
        trait=rng.choice(TRAITS),
        person=rng.choice(PEOPLE),
        other=rng.choice(PEOPLE),
        deed=rng.choice(DEEDS),
        look=rng.choice(LOOKS),
        thing=rng.choice(THINGS),
        place=rng.choice(PLACES),
        time=rng.choice(TIMES),
        number=rng.choice(NUMBERS),
    )
