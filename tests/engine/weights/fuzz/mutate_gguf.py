"""Mutations of GGUF files: lies in single numbers, changes of the tree, and damage to the bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from copy import deepcopy

from tests.engine.weights.fuzz.gguf_tree import ARRAY, SIZES, STRING, Array, Entry, Place, Tree, Value, read, write

TOKENIZER = b"tokenizer.ggml."
_LONG = 1 << 20
_LETTERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def mutated(raw: bytes, rng: random.Random, other: bytes) -> tuple[bytes, str]:
    """The file with one to three mutations, and what they are. other: a second file, of which pieces are taken."""
    done: list[str] = []
    tree = read(raw)
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        done.append(rng.choice(_OF_TREES)(tree, rng))
    if rng.random() < 0.5:
        _fill_page(tree)
    raw, places = write(tree)
    if not done or rng.random() < 0.25:
        changed, what = rng.choice(_OF_BYTES)(raw, places, rng, other)
        return changed, "; ".join([*done, what])
    return raw, "; ".join(done)


def _fill_page(tree: Tree) -> None:
    """Have the last tensor end where a page of memory does, after which nothing may be read."""
    tree.entries.append(filler := Entry(b"filler", STRING, b""))
    filler.value = bytes(-len(write(tree)[0]) % 4096)


def odd_number(rng: random.Random, n_bytes: int, old: int, n_file: int) -> int:
    top = 1 << 8 * n_bytes
    near = [0, 1, 2, 3, old + 1, old - 1, 2 * old, old // 2, old ^ 1 << rng.randrange(8 * n_bytes), -old]
    far = [top - 1, top // 2, top // 2 - 1, top - old, 1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 61, n_file, n_file + 1]
    return rng.choice([*near, *far, rng.randrange(top), rng.randrange(64)]) % top


# Of bytes


def _lie(raw: bytes, places: list[Place], rng: random.Random, other: bytes) -> tuple[bytes, str]:
    """Any one number of the header; those of long arrays are as likely together as any other."""
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(place.what, []).append(place)
    place = rng.choice(groups[rng.choice(sorted(groups))])
    old = int.from_bytes(raw[place.at : place.at + place.n_bytes], "little")
    new = odd_number(rng, place.n_bytes, old, len(raw))
    changed = raw[: place.at] + new.to_bytes(place.n_bytes, "little") + raw[place.at + place.n_bytes :]
    return changed, f"{place.what} {old} -> {new}"


def _flip(raw: bytes, places: list[Place], rng: random.Random, other: bytes) -> tuple[bytes, str]:
    changed = bytearray(raw)
    most = rng.choice((24, places[-1].at + 8, places[-1].at + 8, len(raw)))
    at = [rng.randrange(min(most, len(raw))) for _ in range(rng.choice((1, 1, 2, 8, 64)))]
    for i in at:
        changed[i] = rng.choice((changed[i] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255))
    return bytes(changed), f"bytes {at[:8]}"


def _cut(raw: bytes, places: list[Place], rng: random.Random, other: bytes) -> tuple[bytes, str]:
    place = rng.choice(places)
    ends = [0, 3, 4, rng.randrange(len(raw)), place.at, place.at + rng.randrange(place.n_bytes), len(raw) - 1, len(raw) - 32]
    end = rng.choice([*ends, len(raw) // 4096 * 4096])
    return raw[:end], f"cut at {end}"


def _splice(raw: bytes, places: list[Place], rng: random.Random, other: bytes) -> tuple[bytes, str]:
    first, second = (rng.choice(places).at for _ in range(2))
    n = rng.choice((1, 8, 64, 4096))
    source = rng.choice((raw, other))
    start = rng.randrange(len(source))
    piece = rng.choice((b"", source[start : start + n], bytes(n), rng.randbytes(n)))
    end = rng.choice((first, first + len(piece), max(first, second), first + n))
    return raw[:first] + piece + raw[end:], f"{first}..{end} replaced by {len(piece)} bytes"


_OF_BYTES: list[Callable[[bytes, list[Place], random.Random, bytes], tuple[bytes, str]]] = [
    _lie,
    _lie,
    _lie,
    _flip,
    _flip,
    _cut,
    _splice,
]


# Of trees, in place


def _scalar(kind: int, rng: random.Random) -> bytes:
    if kind == 6:
        return struct.pack("<f", rng.choice((0.0, -1.0, 1e-30, 1e38, float("nan"), float("inf"), float("-inf"), rng.random())))
    if kind == 12:
        return struct.pack("<d", rng.choice((0.0, -1.0, 1e300, 1e-300, float("nan"), float("inf"), rng.random())))
    return odd_number(rng, SIZES[kind], rng.randrange(300), 1 << 16).to_bytes(SIZES[kind], "little")


def _text(rng: random.Random) -> bytes:
    odd = [b"", b" ", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"a b c", b"<|im_end|>", "é▁Ġ\U0001f600".encode(), b"x" * 300]
    templates = [
        b"{{",
        b"{% for i in range(10**9) %}{% endfor %}",
        b"{{ messages[99].content }}",
        b"{{ 'a' * 10**9 }}",
        b"(" * 3000,
    ]
    return rng.choice([*odd, *odd, *templates, b"y" * _LONG, rng.randbytes(9), b"llama", b"gpt2", b"qwen2"])


def _value(kind: int, rng: random.Random, depth: int = 0) -> Value:
    if kind == STRING:
        return _text(rng)
    if kind == ARRAY:
        of = rng.choice([*SIZES, STRING, ARRAY] if depth < 5 else [*SIZES])
        return Array(of, [_value(of, rng, depth + 1) for _ in range(rng.choice((0, 1, 2, 2, 5)))])
    return _scalar(kind, rng)


def _change_value(tree: Tree, rng: random.Random) -> str:
    """To another of its type, of another type, or of a type that does not exist."""
    entry = rng.choice(tree.entries)
    entry.kind = rng.choice((entry.kind, entry.kind, *SIZES, STRING, ARRAY, 13, 1 << 31))
    entry.value = _value(entry.kind, rng) if entry.kind in (*SIZES, STRING, ARRAY) else b""
    return f"{entry.key!r} is of type {entry.kind}"


def _nest(tree: Tree, rng: random.Random) -> str:
    entry = rng.choice(tree.entries)
    depth = rng.choice((1, 2, 3, 6, 500))
    for _ in range(depth):
        entry.kind, entry.value = ARRAY, Array(entry.kind, [entry.value] * rng.choice((1, 1, 2) if depth < 10 else (1,)))
    return f"{entry.key!r} nested {depth} deep"


def _change_array(tree: Tree, rng: random.Random) -> str:
    """Of a vocabulary, mostly: too short, too long, in another order, with odd, long or equal items, or of another type."""
    arrays = [entry for entry in tree.entries if isinstance(entry.value, Array)]
    if not arrays:
        return "no array"
    entry = rng.choice(arrays)
    array = entry.value = Array(entry.value.kind, list(entry.value.items))
    items = array.items
    match rng.choice(("empty", "short", "one less", "long", "shuffled", "odd items", "odd items", "equal", "retyped")):
        case "empty":
            items.clear()
        case "short":
            del items[rng.randrange(len(items) + 1) :]
        case "one less" if items:
            items.pop()
        case "long":
            items += (
                [_value(array.kind, rng, 4) for _ in range(rng.choice((1, 2, 1000)))] if array.kind in _LETTERS | {8: ""} else []
            )
        case "shuffled":
            rng.shuffle(items)
        case "odd items" if items:
            for _ in range(rng.choice((1, 3, len(items)))):
                items[rng.randrange(len(items))] = _value(array.kind, rng, 4)
        case "equal" if items:
            items[:] = [items[0]] * len(items)
        case "retyped":
            array.kind = rng.choice([*SIZES, STRING])
            items[:] = [_value(array.kind, rng) for _ in items[:300]]
    return f"{entry.key!r} is an array of {len(items)} of type {array.kind}"


def _token_id(tree: Tree, rng: random.Random) -> str:
    names = ["bos", "eos", "eot", "eom", "unknown", "padding", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"]
    key = TOKENIZER + rng.choice(names).encode() + b"_token_id"
    kind = rng.choice((4, 4, 4, 5, 10, 11, 6, 7, STRING))
    tree.entries = [entry for entry in tree.entries if entry.key != key]
    tree.entries.append(Entry(key, kind, _value(kind, rng)))
    return f"{key!r} of type {kind}"


def _vocabulary_entry(tree: Tree, rng: random.Random) -> str:
    """A switch, the name of a method, or a column of the vocabulary that it does not go with."""
    name = rng.choice(
        ("model", "pre", "add_bos_token", "add_eos_token", "add_space_prefix", "merges", "scores", "token_type", "tokens")
    )
    key = TOKENIZER + name.encode()
    tree.entries = [entry for entry in tree.entries if entry.key != key]
    kind = rng.choice((STRING, STRING, 7, ARRAY, ARRAY, 4))
    tree.entries.append(Entry(key, kind, _value(kind, rng)))
    return f"{key!r} of type {kind}"


def _drop(tree: Tree, rng: random.Random) -> str:
    entry = tree.entries.pop(rng.randrange(len(tree.entries)))
    return f"without {entry.key!r}"


def _repeat(tree: Tree, rng: random.Random) -> str:
    entry = deepcopy(rng.choice(tree.entries))
    entry.key = rng.choice((entry.key, entry.key + b"x", b"", b"\xff", b"general.alignment", b"split.count", b"k" * 70_000))
    tree.entries.insert(rng.randrange(len(tree.entries) + 1), entry)
    return f"also {entry.key[:40]!r}"


def _swap(tree: Tree, rng: random.Random) -> str:
    first, second = rng.choice(tree.entries), rng.choice(tree.entries)
    first.kind, first.value, second.kind, second.value = second.kind, second.value, first.kind, first.value
    return f"values of {first.key!r} and {second.key!r} exchanged"


def _alignment(tree: Tree, rng: random.Random) -> str:
    kind = rng.choice((4, 4, 5, 10, 6, STRING))
    tree.entries.append(Entry(b"general.alignment", kind, _value(kind, rng)))
    return f"alignment of type {kind}"


def _move_tensor(tree: Tree, rng: random.Random) -> str:
    """Onto another, beyond the end, to where 64 bits wrap around, or to no multiple of the alignment."""
    info, other = rng.choice(tree.infos), rng.choice(tree.infos)
    n_data = len(tree.data)
    places = [
        other.offset,
        other.offset + 32,
        n_data,
        n_data - 32,
        info.offset + 1,
        (1 << 64) - 32,
        (1 << 63),
        (1 << 64) - n_data,
    ]
    info.offset = rng.choice(places) % (1 << 64)
    return f"{info.name!r} at {info.offset}"


def _reshape_tensor(tree: Tree, rng: random.Random) -> str:
    info = rng.choice(tree.infos)
    match rng.randrange(7):
        case 0:
            i = rng.randrange(len(info.dims))
            info.dims[i] = odd_number(rng, 8, info.dims[i], 1 << 20)
        case 1:
            info.dims.reverse()
        case 2:
            info.dims.append(rng.choice((0, 1, 2, 1 << 32)))
        case 3:
            info.dims.pop()
        case 4:
            info.dims = [1] * rng.choice((0, 4, 5, 100))
        case 5:  # products that wrap around to what is there
            info.dims = [info.dims[0], *([1 << 32] * rng.choice((1, 2))), *info.dims[1:]]
        case 6:
            info.dims = [256, (1 << 63) // 128 + rng.choice((0, 1)), *info.dims[2:]]
    return f"{info.name!r} of shape {info.dims[:5]}"


def _retype_tensor(tree: Tree, rng: random.Random) -> str:
    info = rng.choice(tree.infos)
    info.kind = rng.choice([*range(42), 1 << 31, (1 << 32) - 1])
    return f"{info.name!r} of type {info.kind}"


def _rename_tensor(tree: Tree, rng: random.Random) -> str:
    info, other = rng.choice(tree.infos), rng.choice(tree.infos)
    names = [
        other.name,
        b"",
        b"\xff",
        b"rope_freqs.weight",
        b"output.weight",
        b"blk.7.attn_q.weight",
        b"blk.999999.attn_q.weight",
    ]
    info.name = rng.choice([*names, b"blk.0.attn_q.bias", b"blk.00.attn_q.weight", b"n" * 70_000])
    return f"a tensor named {info.name[:40]!r}"


def _drop_tensor(tree: Tree, rng: random.Random) -> str:
    return f"without {tree.infos.pop(rng.randrange(len(tree.infos))).name!r}"


def _exchange_tensors(tree: Tree, rng: random.Random) -> str:
    first, second = rng.choice(tree.infos), rng.choice(tree.infos)
    first.name, second.name = second.name, first.name
    return f"{first.name!r} and {second.name!r} exchanged"


def _size(tree: Tree, rng: random.Random) -> str:
    """A number of the configuration that tensors have to agree with, or not."""
    numbers = [entry for entry in tree.entries if entry.kind in SIZES and not entry.key.startswith(TOKENIZER)]
    if not numbers:
        return "no number"
    entry = rng.choice(numbers)
    entry.value = _scalar(entry.kind, rng)
    return f"{entry.key!r} = {struct.unpack('<' + _LETTERS[entry.kind], entry.value)[0]!r}"


_OF_TREES: list[Callable[[Tree, random.Random], str]] = [
    *(_change_value, _nest, _change_array, _change_array, _token_id, _vocabulary_entry, _drop, _repeat, _swap, _alignment),
    *(_move_tensor, _reshape_tensor, _retype_tensor, _rename_tensor, _drop_tensor, _exchange_tensors, _size, _size),
]
