"""Writes GGUF files, right ones and wrong ones, byte by byte; independent of the parser and of the gguf package."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

STRING, ARRAY = 8, 9
LETTERS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"), "i32": (5, "i"), "f32": (6, "f")}
LETTERS |= {"bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"), "f64": (12, "d")}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def typed(kind: str, value: object) -> bytes:
    """A value with its type before it: kind is a scalar's name, "str", or "[kind]" for a list."""
    if kind.startswith("["):
        items = [typed(kind[1:-1], item) for item in value]
        item_type = items[0][:4] if items else struct.pack("<I", 4)
        return struct.pack("<I", ARRAY) + item_type + struct.pack("<Q", len(items)) + b"".join(item[4:] for item in items)
    if kind == "str":
        return struct.pack("<I", STRING) + string(value)
    number, letter = LETTERS[kind]
    return struct.pack(f"<I{letter}", number, value)


def entry(key: str | bytes, value: bytes) -> bytes:
    return string(key) + value


def tensor_info(name: str, dims: tuple[int, ...], type_id: int, offset: int, n_dims: int | None = None) -> bytes:
    """dims as in the file: values of a row first."""
    n_dims = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", n_dims, *dims, type_id, offset)


@dataclass
class Parts:
    """A file in pieces, each of which a test may spoil."""

    entries: list[bytes] = field(default_factory=list)
    infos: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_entries: int | None = None
    n_infos: int | None = None
    alignment: int = 32

    def bytes(self) -> bytes:
        n_entries = len(self.entries) if self.n_entries is None else self.n_entries
        n_infos = len(self.infos) if self.n_infos is None else self.n_infos
        head = self.magic + struct.pack("<IQQ", self.version, n_infos, n_entries) + b"".join(self.entries) + b"".join(self.infos)
        return head + bytes(-len(head) % self.alignment) + self.data


def tiny_llama(rope_factors: bool = False) -> Parts:
    """A complete llama of one layer, all zeros: F32 norms, Q4_1 and Q8_0 matrices."""
    parts = Parts()
    numbers = {"block_count": 1, "context_length": 64, "embedding_length": 64, "feed_forward_length": 96}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2, "rope.dimension_count": 16}
    parts.entries = [entry("general.architecture", typed("str", "llama"))]
    parts.entries += [entry(f"llama.{name}", typed("u32", value)) for name, value in numbers.items()]
    parts.entries += [
        entry("llama.attention.layer_norm_rms_epsilon", typed("f32", 1e-5)),
        entry("tokenizer.ggml.tokens", typed("[str]", ["<s>", "a", "é", ""])),
        entry("tokenizer.ggml.scores", typed("[f32]", [0.0, -1.0, -2.0, -3.0])),
        entry("tokenizer.ggml.eos_token_id", typed("u32", 0)),
        entry("tokenizer.ggml.add_bos_token", typed("bool", True)),
    ]
    tensors = [("token_embd.weight", (64, 4), 8), ("output_norm.weight", (64,), 0)]
    tensors += [("rope_freqs.weight", (8,), 0)] if rope_factors else []
    for name, dims in (("attn_q", (64, 64)), ("attn_k", (64, 32)), ("attn_v", (64, 32)), ("attn_output", (64, 64))):
        tensors.append((f"blk.0.{name}.weight", dims, 3))
    for name, dims in (("ffn_gate", (64, 96)), ("ffn_up", (64, 96)), ("ffn_down", (96, 64))):
        tensors.append((f"blk.0.{name}.weight", dims, 3))
    tensors += [("blk.0.attn_norm.weight", (64,), 0), ("blk.0.ffn_norm.weight", (64,), 0)]
    for name, dims, type_id in tensors:
        values = dims[0] * (dims[1] if len(dims) > 1 else 1)
        size = {0: values * 4, 3: values // 32 * 20, 8: values // 32 * 34}[type_id]
        parts.infos.append(tensor_info(name, dims, type_id, len(parts.data)))
        fill = struct.pack("<f", 1.0) * values if name == "rope_freqs.weight" else bytes(size)
        parts.data += fill + bytes(-size % 32)
    return parts
