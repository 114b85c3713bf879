"""The shelf: models that have a short name, so that one need not know a hub id or a file."""

from __future__ import annotations

from dataclasses import dataclass

from app.catalog import bundled


@dataclass(frozen=True, slots=True)
class ShelfEntry:
    """A model that can be pulled by a short name."""

    name: str
    size: str
    """Parameters, as its makers count them."""
    about: str
    hub_id: str | None
    """owner/name:quantisation on the hub; None for the bundled model."""


SHELF: tuple[ShelfEntry, ...] = (
    ShelfEntry(bundled.NAME, "135M", "the bundled default: tiny, for a first try", None),
    ShelfEntry("qwen3-0.6b", "0.6B", "small chat with tools", "Qwen/Qwen3-0.6B-GGUF:Q8_0"),
    ShelfEntry("qwen3-4b", "4B", "chat, tools and code on 8 GB", "Qwen/Qwen3-4B-GGUF:Q4_K_M"),
    ShelfEntry("qwen3-8b", "8B", "chat, tools and code on 16 GB", "Qwen/Qwen3-8B-GGUF:Q4_K_M"),
    ShelfEntry("qwen2.5-coder-0.5b", "0.5B", "completion in the editor", "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:Q8_0"),
    ShelfEntry("qwen2.5-coder-1.5b", "1.5B", "completion in the editor", "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:Q4_K_M"),
    ShelfEntry("qwen2.5-coder-7b", "7B", "code and completion on 16 GB", "Qwen/Qwen2.5-Coder-7B-Instruct-GGUF:Q4_K_M"),
    ShelfEntry("gemma-3-1b", "1B", "small chat in many languages", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"),
    ShelfEntry("gemma-3-4b", "4B", "chat in many languages on 8 GB", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"),
    ShelfEntry("llama-3.2-1b", "1B", "small chat", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
    ShelfEntry("llama-3.2-3b", "3B", "chat on 8 GB", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
)
BY_NAME: dict[str, ShelfEntry] = {entry.name: entry for entry in SHELF}
