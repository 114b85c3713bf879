"""Mutations of folders: JSON whose values lie, headers of safetensors, and damage to the bytes and to the set of files."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

Files = dict[str, bytes]
"""Name -> content."""

_ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 0.0, -0.5, 0.3, 1e-300),
    *(1e308, float("nan"), float("inf"), float("-inf"), "", " ", "x", "auto", "\ud800", "é" * 50, "../x", "a" * 100_000),
    *([], {}, [None], [[[[]]]], {"": ""}, {"a": {"b": {}}}, [0] * 2000, ["full_attention"], ["sliding_attention"] * 3),
]
_TEXTS = [
    *("llama", "mistral", "qwen2", "qwen3", "gemma3", "gemma3_text", "qwen3_5", "qwen3_5_text", "bamba", "gpt2", "mamba"),
    *(
        "linear",
        "dynamic",
        "yarn",
        "llama3",
        "default",
        "longrope",
        "gelu",
        "silu",
        "relu",
        "F64",
        "F16",
        "BF16",
        "U8",
        "I64",
        "BOOL",
    ),
    *("/etc/passwd", "../model.safetensors", "model.safetensors", ".safetensors", "x/../model.safetensors", "nul\0.safetensors"),
]


def mutated(files: Files, rng: random.Random) -> tuple[Files, str]:
    """The folder with one to three mutations, and what they are."""
    files, done = dict(files), []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        done.append(rng.choice(_MUTATIONS)(files, rng))
    return files, "; ".join(done)


def _spots(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON value; of long lists and objects a few from both ends."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        keys = [*value]
    elif isinstance(value, list):
        keys = [*range(len(value))]
    else:
        return found
    for key in keys if len(keys) < 80 else keys[:5] + keys[-5:]:
        found.append((value, key))
        found += _spots(value[key])
    return found


def _change(value: Any, rng: random.Random) -> str:
    """One thing within a JSON object, in place."""
    spots = _spots(value)
    if not spots:
        return "nothing"
    container, key = rng.choice(spots)
    old = container[key]
    match rng.randrange(7):
        case 0 if isinstance(container, dict):
            del container[key]
            return f"without {key!r}"
        case 1 if isinstance(old, int) and not isinstance(old, bool):
            container[key] = rng.choice((old + 1, old - 1, -old, 2 * old, old // 2, old * 1000, float(old), str(old), old + 0.5))
        case 2:
            container[key] = rng.choice(_TEXTS)
        case 3:
            other, other_key = rng.choice(spots)
            container[key] = deepcopy(other[other_key])
        case 4 if isinstance(old, list):
            container[key] = rng.choice((old[:-1], old + old[-1:], old[::-1], old * 2, [old]))
        case 5 if isinstance(container, dict):
            container[rng.choice((*_TEXTS, key + "x", ""))] = container.pop(key)
        case _:
            container[key] = deepcopy(rng.choice(_ODD))
    return f"{key!r}: {str(old)[:40]} -> {str(container.get(key) if isinstance(container, dict) else container[key])[:40]!r}"


def _json_of(files: Files, rng: random.Random) -> str:
    name = rng.choice([name for name in sorted(files) if name.endswith(".json")])
    value = json.loads(files[name])
    what = _change(value, rng)
    files[name] = json.dumps(value).encode("utf-8", "surrogatepass")
    return f"{name} {what}"


def _config(files: Files, rng: random.Random) -> str:
    value = json.loads(files["config.json"])
    optional = {
        "rope_scaling": {"rope_type": "yarn", "factor": rng.choice((0.5, 1, 4, 1e30))},
        "head_dim": rng.choice((1, 2, 16, 17, 1 << 20)),
        "sliding_window": rng.choice((0, 1, 5, None, 1 << 40)),
        "use_sliding_window": True,
        "layer_types": ["sliding_attention", "full_attention", "linear_attention"],
        "quantization_config": rng.choice(({"quant_method": "gptq"}, {"quant_method": "x"}, [], "x", {"bits": 4})),
        "tie_word_embeddings": rng.choice((True, False)),
        "partial_rotary_factor": rng.choice((0.0, 0.1, 0.5, 1.5, -1)),
        "attention_bias": True,
        "text_config": {},
        "eos_token_id": rng.choice((-1, 10**12, [10**12], {}, "x")),
    }
    name = rng.choice(sorted(optional))
    value[name] = optional[name]
    files["config.json"] = json.dumps(value).encode()
    return f"config.json {name} = {optional[name]!r}"


def _tokenizer(files: Files, rng: random.Random) -> str:
    """Steps of tokenizer.json that are of other kinds, or odd ones of their own."""
    value = json.loads(files["tokenizer.json"])
    name = rng.choice(
        ("normalizer", "pre_tokenizer", "post_processor", "decoder", "truncation", "padding", "added_tokens", "model")
    )
    step: Any = rng.choice(_STEPS)
    if name == "truncation":
        step = {
            "direction": "Right",
            "max_length": rng.choice((0, 1, 4)),
            "strategy": "LongestFirst",
            "stride": rng.choice((0, 9)),
        }
    elif name == "padding":
        step = {
            "strategy": {"Fixed": rng.choice((0, 9, 1 << 40))},
            "direction": "Left",
            "pad_to_multiple_of": rng.choice((None, 0, 8)),
        }
        step |= {"pad_id": rng.choice((0, 1 << 31)), "pad_type_id": 0, "pad_token": "x"}
    elif name == "added_tokens":
        token = {"id": rng.choice((0, 5, 300, 10**6, 2**32 - 1)), "content": rng.choice(("", " ", "he", "<x>", "\0", "l" * 9999))}
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        step = value[name] + [token | {flag: rng.random() < 0.5 for flag in flags}]
    elif name == "model":
        model = value["model"]
        match rng.randrange(6):
            case 0:
                model["vocab"] |= {"zz": rng.choice((0, 270, 10**6, 2**32 - 1))}
            case 1:
                model["merges"].append(rng.choice((["h", "zz"], ["h"], "h e", "h", ["h", "h", "h"], ["", ""])))
            case 2:
                model |= {"unk_token": rng.choice(("zz", "he", "")), "fuse_unk": True, "byte_fallback": True}
            case 3:
                model |= {"continuing_subword_prefix": "##", "end_of_word_suffix": "</w>"}
            case 4:
                model |= {"dropout": rng.choice((0.5, 1.0, 2.0, -1.0))}
            case 5:
                model["type"] = rng.choice(("WordPiece", "WordLevel", "Unigram", "x"))
        step = model
    value[name] = step
    files["tokenizer.json"] = json.dumps(value).encode("utf-8", "surrogatepass")
    return f"tokenizer.json {name} = {str(step)[-100:]}"


_STEPS: list[Any] = [
    *(None, {"type": "Sequence", "normalizers": [], "pretokenizers": [], "decoders": [], "processors": []}),
    *(
        {"type": "Replace", "pattern": {"String": ""}, "content": "x"},
        {"type": "Replace", "pattern": {"Regex": "("}, "content": ""},
    ),
    *({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"}, {"type": "Prepend", "prepend": "\u2581"}),
    *({"type": "Strip", "content": " ", "start": 5, "stop": 9}, {"type": "Strip", "strip_left": True, "strip_right": True}),
    *({"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "NFC"}, {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    *({"type": "Precompiled", "precompiled_charsmap": "/////w=="}, {"type": "WordPiece", "prefix": "##", "cleanup": True}),
    *({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}, {"type": "Lowercase"}),
    *(
        {"type": "Split", "pattern": {"Regex": ""}, "behavior": "Isolated", "invert": True},
        {"type": "Digits", "individual_digits": True},
    ),
    *({"type": "BertProcessing", "sep": ["x", 999], "cls": ["y", 2**32 - 1]}, {"type": "ByteLevel", "add_prefix_space": True}),
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "x", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"x": {"id": "x", "ids": [2**32 - 1], "tokens": ["x"]}},
    },
    {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
]


def _token_names(files: Files, rng: random.Random) -> str:
    """Of tokenizer_config.json, where special tokens are named."""
    value = json.loads(files["tokenizer_config.json"])
    odd = rng.choice(("\ud800", "", "he", "no such token", "x" * 100_000, {"content": "\udfff"}, {"content": 3}, [], 7, None))
    entry = {"content": odd, "special": rng.choice((True, 0, "x", None))}
    match rng.randrange(4):
        case 0:
            value[rng.choice(("bos_token", "eos_token"))] = odd
        case 1:
            value["added_tokens_decoder"][rng.choice(("0", "272", "273", "-1", "x", "\u0661", "9" * 30))] = entry
        case 2:
            value["add_bos_token"] = rng.choice((True, False, "x"))
        case 3:
            value["chat_template"] = rng.choice(([{"name": "default", "template": odd}], [odd], {"default": "x"}, odd, 5))
    files["tokenizer_config.json"] = json.dumps(value).encode()
    return f"tokenizer_config.json with {str(odd)[:30]!r}"


def _index(files: Files, rng: random.Random) -> str:
    """Where tensors are said to be; a folder without an index gets one."""
    name = "model.safetensors.index.json"
    shards = _weights(files)
    index = json.loads(files[name]) if name in files else {"weight_map": {"model.norm.weight": shards[0]}}
    tensor = rng.choice(sorted(index["weight_map"]))
    places = [
        "../" + shards[0],
        "/etc/passwd",
        "./" + shards[0],
        "nul\0.safetensors",
        "",
        ".",
        "..",
        "x.safetensors",
        "config.json",
    ]
    index["weight_map"][tensor] = rng.choice([*places, *shards, None, 3, [], "\ud800.safetensors", "n" * 300 + ".safetensors"])
    files[name] = json.dumps(index).encode("utf-8", "surrogatepass")
    return f"{tensor} is said to be in {str(index['weight_map'][tensor])[:40]!r}"


def _weights(files: Files) -> list[str]:
    return [name for name in sorted(files) if name.endswith(".safetensors")]


def _header(files: Files, rng: random.Random) -> str:
    """The JSON header of a safetensors file, whose length is told right."""
    name = rng.choice(_weights(files))
    n = int.from_bytes(files[name][:8], "little")
    header = json.loads(files[name][8 : 8 + n])
    what = _lie(header, rng) if rng.random() < 0.5 else _change(header, rng)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    files[name] = len(text).to_bytes(8, "little") + text + files[name][8 + n :]
    return f"{name} {what}"


def _lie(header: dict[str, Any], rng: random.Random) -> str:
    """Of one tensor's type, shape or place."""
    name = rng.choice([name for name in header if name != "__metadata__"])
    tensor, other = header[name], header[rng.choice([name for name in header if name != "__metadata__"])]
    match rng.randrange(6):
        case 0:
            tensor["dtype"] = rng.choice(("F16", "BF16", "F32", "F64", "I8", "U8", "BOOL", "F8_E4M3", "C64", ""))
        case 1:
            tensor["shape"] = rng.choice((other["shape"], tensor["shape"][::-1], [], [0], [1 << 62, 4], [1] * 9, [-1], [2**64]))
        case 2:
            start, end = tensor["data_offsets"]
            tensor["data_offsets"] = rng.choice(
                ([end, start], [start + 4, end + 4], [start, 1 << 62], other["data_offsets"], [-4, 0])
            )
        case 3:
            tensor |= {"dtype": "BF16", "shape": [*tensor["shape"], 2]}  # as many bytes
        case 4:
            header[rng.choice(("lm_head.weight", "model.layers.9.mlp.up_proj.weight", ""))] = header.pop(name)
        case 5:
            header["rotary_emb.inv_freq"] = deepcopy(other)
    return f"lies of {name}"


def _length(files: Files, rng: random.Random) -> str:
    name = rng.choice(_weights(files))
    n = int.from_bytes(files[name][:8], "little")
    new = rng.choice((0, 1, 2, n - 1, n + 1, len(files[name]), 1 << 31, 1 << 63, (1 << 64) - 1, 100_000_001)) % (1 << 64)
    files[name] = new.to_bytes(8, "little") + files[name][8:]
    return f"{name} has a header of {new} bytes"


def _bytes(files: Files, rng: random.Random) -> str:
    name = rng.choice(sorted(files))
    raw = bytearray(files[name])
    most = rng.choice((64, 2048, len(raw)))
    for _ in range(rng.choice((1, 2, 20))):
        if raw:
            raw[rng.randrange(min(most, len(raw)))] = rng.randrange(256)
    files[name] = bytes(raw)
    return f"bytes of {name}"


def _cut(files: Files, rng: random.Random) -> str:
    name = rng.choice(sorted(files))
    end = rng.choice((0, 1, 8, 9, rng.randrange(len(files[name]) + 1), max(0, len(files[name]) - 1)))
    files[name] = files[name][:end] + rng.choice((b"", b"", b"\0" * 5))
    return f"{name} cut at {end}"


def _deep(files: Files, rng: random.Random) -> str:
    name = rng.choice([name for name in sorted(files) if name.endswith(".json")])
    n = rng.choice((100, 3000, 200_000))
    files[name] = rng.choice(
        (b"[" * n, b'{"a":' * n, b'{"a":' + b"[" * n + b"]" * n + b"}", b"\xff\xfe{}", b"7" * n, b"\xef\xbb\xbf{}")
    )
    return f"{name} is {n} deep"


def _missing(files: Files, rng: random.Random) -> str:
    name = rng.choice(sorted(files))
    del files[name]
    return f"without {name}"


def _exchanged(files: Files, rng: random.Random) -> str:
    first, second = rng.choice(sorted(files)), rng.choice(sorted(files))
    files[first], files[second] = files[second], files[first]
    return f"{first} and {second} exchanged"


def _template(files: Files, rng: random.Random) -> str:
    sources = (b"{{", b"\xff\xfe", b"{% for i in range(10**9) %}x{% endfor %}", b"{{ ''.__class__ }}", b"(" * 5000, b"")
    files["chat_template.jinja"] = rng.choice(sources)
    return "a template"


_MUTATIONS: list[Callable[[Files, random.Random], str]] = [
    *(
        _json_of,
        _json_of,
        _json_of,
        _config,
        _config,
        _tokenizer,
        _tokenizer,
        _token_names,
        _index,
        _header,
        _header,
        _header,
        _length,
        _bytes,
        _cut,
        _deep,
        _missing,
    ),
    *(_exchanged, _template),
]


def _guarded(mutation: Callable[[Files, random.Random], str]) -> Callable[[Files, random.Random], str]:
    """An earlier mutation may have left nothing that this one can read or choose from."""

    def apply(files: Files, rng: random.Random) -> str:
        try:
            return mutation(files, rng)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
            return f"{mutation.__name__} not possible ({type(error).__name__})"

    return apply


_MUTATIONS = [_guarded(mutation) for mutation in _MUTATIONS]


def read(folder: Path) -> Files:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def write(files: Files, folder: Path) -> None:
    folder.mkdir()
    for name, raw in files.items():
        (folder / name).write_bytes(raw)
