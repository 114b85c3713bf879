"""The parser reads what the gguf package reads, and refuses everything that is not a sound file."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc
from pathlib import Path

import gguf
import pytest
import torch

from engine.errors import ModelLoadError
from engine.weights.gguf.file import GGUFFile
from engine.weights.loader import open_checkpoint
from tests import models
from tests.engine.weights.gguf_writer import LETTERS, Parts, entry, string, tensor_info, tiny_llama, typed


def _file(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return path


def _plain(value: object) -> object:
    """With lists in place of memoryviews."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, memoryview) else value


def _assert_reads_like_the_gguf_package(path: Path) -> None:
    file, oracle = GGUFFile(path), gguf.GGUFReader(path)
    expected = {key: value.contents() for key, value in oracle.fields.items() if not key.startswith("GGUF.")}
    assert _plain(file.metadata) == expected
    assert list(file.tensors) == [tensor.name for tensor in oracle.tensors]
    for wanted in oracle.tensors:
        tensor = file.tensors[wanted.name]
        assert (tensor.qtype, tensor.offset, tensor.n_bytes) == (wanted.tensor_type.name, wanted.data_offset, wanted.n_bytes)
        assert tensor.shape == tuple(int(dim) for dim in reversed(wanted.shape))
    last = oracle.tensors[-1]
    assert file.data(last.name).numpy().tobytes() == last.data.tobytes()


def test_the_default_model_reads_like_the_gguf_package() -> None:
    _assert_reads_like_the_gguf_package(models.smollm2())


def test_every_kind_of_metadata(tmp_path: Path) -> None:
    values = {
        "u8": 200, "i8": -100, "u16": 60_000, "i16": -30_000, "u32": 4_000_000_000, "i32": -2_000_000_000, "f32": 0.5,
        "bool": True, "u64": 2**63, "i64": -(2**62), "f64": 0.1, "str": "Grüße 👋", "[i16]": [1, -2], "[bool]": [True, False],
        "[str]": ["a", "", "ü"], "[[u8]]": [[1, 2], [], [3]], "[f32]": [], "[f64]": [0.1, -2.5], "[u64]": [2**64 - 1],
    }  # fmt: skip
    parts = Parts(entries=[entry(kind, typed(kind, value)) for kind, value in values.items()])
    assert _plain(GGUFFile(_file(tmp_path, parts.bytes())).metadata) == values


@pytest.mark.parametrize(("kind", "letter"), [("u8", "B"), ("f32", "f"), ("bool", "?")])
def test_an_array_of_numbers_takes_no_memory_of_its_own(kind: str, letter: str, tmp_path: Path) -> None:
    n = 1 << 20
    raw = struct.pack("<IIQ", 9, LETTERS[kind][0], n) + bytes(n * struct.calcsize(letter))
    path = _file(tmp_path, Parts(entries=_entry(raw)).bytes())
    tracemalloc.start()
    try:
        values = GGUFFile(path).metadata["key"]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(values) == n and values[n - 1] == 0
    assert peak < 2 * n + 200_000, "a list takes 16 bytes for each value while it is made"


@pytest.mark.parametrize("none", [("i32", -1), ("u32", 2**32 - 1)], ids=str)
def test_a_special_id_that_names_no_token_is_no_obstacle(none: tuple[str, int], tmp_path: Path) -> None:
    parts = tiny_llama()
    parts.entries += [entry(f"tokenizer.ggml.{name}_token_id", typed(*none)) for name in ("eot", "eom", "padding")]
    assert open_checkpoint(_file(tmp_path, parts.bytes())).config.vocab_size == 4


def test_dense_tensors_and_tensors_of_three_dims(tmp_path: Path) -> None:
    numbers = struct.pack("<24f", *range(24))
    parts = Parts(
        infos=[tensor_info("a", (4, 3, 2), 0, 0), tensor_info("b", (4,), 1, 96), tensor_info("c", (32, 1, 2), 2, 128)],
        data=numbers + struct.pack("<4e", 1, 2, 3, 4) + bytes(24 + 36),
    )
    file = GGUFFile(_file(tmp_path, parts.bytes()))
    assert torch.equal(file.data("a"), torch.arange(24.0).view(2, 3, 4))
    assert torch.equal(file.data("b"), torch.tensor([1, 2, 3, 4], dtype=torch.float16))
    assert file.data("c").shape == (2, 1, 18)


def test_another_alignment(tmp_path: Path) -> None:
    parts = Parts(
        entries=[entry("general.alignment", typed("u32", 64))],
        infos=[tensor_info("a", (2,), 0, 0), tensor_info("b", (2,), 0, 64)],
        data=struct.pack("<2f56x2f", 1, 2, 3, 4),
        alignment=64,
    )
    file = GGUFFile(_file(tmp_path, parts.bytes()))
    assert file.tensors["a"].offset % 64 == 0
    assert file.data("b").tolist() == [3, 4]


def test_a_vocabulary_of_a_quarter_million_tokens_reads_in_well_under_a_second(tmp_path: Path) -> None:
    tokens = [f"token {i}" for i in range(262_144)]
    path = _file(tmp_path, Parts(entries=[entry("tokens", typed("[str]", tokens))]).bytes())
    started = time.process_time()
    assert GGUFFile(path).metadata["tokens"] == tokens
    assert time.process_time() - started < 0.8


def _bad(name: str, message: str, **parts: object) -> pytest.param:
    return pytest.param(Parts(**parts), message, id=name)


def _entry(raw: bytes) -> list[bytes]:
    return [string("key") + raw]


ONE = tensor_info("a", (2,), 0, 0)
WRONG_FILES = [
    _bad("no magic", "not a GGUF file", magic=b"PK\3\4"),
    _bad("old version", "version 1 is not supported", version=1),
    _bad("unborn version", "version 9 is not supported", version=9),
    _bad("big-endian", "big-endian", version=3 << 24),
    _bad("too many keys", "metadata count", n_entries=2**63),
    _bad("too many tensors", "tensor count", n_infos=2**64 - 1),
    _bad("one key too many", "file ends|counts", n_entries=1),
    _bad("one tensor too many", "file ends|counts", n_infos=1),
    _bad("endless key", "file ends", entries=[struct.pack("<Q", 2**64 - 1) + b"abcdefgh"]),
    _bad("endless string", "file ends", entries=_entry(struct.pack("<IQ", 8, 2**63) + b"abc")),
    _bad("endless array", "counts", entries=_entry(struct.pack("<IIQ", 9, 4, 2**62) + b"abcd")),
    _bad("endless array of strings", "counts", entries=_entry(struct.pack("<IIQ", 9, 8, 2**60) + bytes(16))),
    _bad("endless string in an array", "file ends", entries=_entry(struct.pack("<IIQQ", 9, 8, 1, 2**64 - 1))),
    _bad("array of unknown type", "unknown type 77", entries=_entry(struct.pack("<IIQ", 9, 77, 1) + bytes(16))),
    _bad("arrays too deep", "nests", entries=_entry(struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 8 + bytes(16))),
    _bad("arrays in an array", "65536 arrays", entries=_entry(struct.pack("<IIQ", 9, 9, 1 << 17) + bytes(12 << 17))),
    _bad("unknown type", "unknown type 13", entries=_entry(struct.pack("<I", 13) + bytes(8))),
    _bad("truth of two", "truth value", entries=_entry(struct.pack("<IB", 7, 2))),
    _bad("truths of two", "truth value", entries=_entry(struct.pack("<IIQBB", 9, 7, 2, 1, 2))),
    _bad("key twice", "twice", entries=[entry("key", typed("u8", 1)), entry("key", typed("u8", 1))]),
    _bad("key not text", "not UTF-8", entries=[entry(b"\xff\xfe", typed("u8", 1))]),
    _bad("value not text", "not UTF-8", entries=_entry(struct.pack("<I", 8) + string(b"\xc3"))),
    _bad("token not text", "not UTF-8", entries=_entry(struct.pack("<IIQ", 9, 8, 1) + string(b"\xc3"))),
    _bad("no dims", "0 dimensions", infos=[tensor_info("a", (), 0, 0)]),
    _bad("five dims", "5 dimensions", infos=[tensor_info("a", (1, 1, 1, 1, 1), 0, 0)]),
    _bad("millions of dims", "dimensions", infos=[tensor_info("a", (2,), 0, 0, n_dims=2**31)]),
    _bad("dim of zero", "impossible shape", infos=[tensor_info("a", (0, 4), 0, 0)]),
    _bad("product overflows", "file has", infos=[tensor_info("a", (2**32, 2**32, 2**32, 2**32), 0, 0)]),
    _bad("product wraps to zero", "file has", infos=[tensor_info("a", (2**63, 2), 0, 0)]),
    _bad("part of a block", "impossible shape", infos=[tensor_info("a", (48, 2), 3, 0)], data=bytes(64)),
    _bad("unsupported type", "IQ4_XS, which is not supported", infos=[tensor_info("a", (256,), 23, 0)]),
    _bad("unheard-of type", "number 999", infos=[tensor_info("a", (256,), 999, 0)]),
    _bad("beyond the end", "file has", infos=[ONE], data=bytes(7)),
    _bad("offset overflows", "file has", infos=[tensor_info("a", (2,), 0, 2**64 - 32)], data=bytes(64)),
    _bad("offset not aligned", "no multiple", infos=[tensor_info("a", (2,), 0, 4)], data=bytes(64)),
    _bad("tensors overlap", "overlap", infos=[ONE, tensor_info("b", (2,), 0, 0)], data=bytes(64)),
    _bad("name twice", "twice", infos=[ONE, tensor_info("a", (2,), 0, 32)], data=bytes(64)),
    _bad("alignment of zero", "power of two", entries=[entry("general.alignment", typed("u32", 0))]),
    _bad("alignment of 48", "power of two", entries=[entry("general.alignment", typed("u32", 48))]),
    _bad("alignment of text", "power of two", entries=[entry("general.alignment", typed("str", "32"))]),
    _bad("alignment of a truth", "power of two", entries=[entry("general.alignment", typed("bool", True))]),
]


@pytest.mark.parametrize(("parts", "message"), WRONG_FILES)
def test_a_wrong_file_is_refused_with_its_name_and_a_remedy(parts: Parts, message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, parts.bytes())
    with pytest.raises(ModelLoadError, match=message) as raised:
        GGUFFile(path)
    assert str(path) in raised.value.message
    assert raised.value.hint


def test_an_empty_file_a_folder_and_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="empty"):
        GGUFFile(_file(tmp_path, b""))
    with pytest.raises(ModelLoadError, match="cannot be read"):
        GGUFFile(tmp_path)
    with pytest.raises(ModelLoadError, match="cannot be read"):
        GGUFFile(tmp_path / "absent.gguf")


def _read_everything(path: Path) -> None:
    """Open as a model and touch every value. ModelLoadError is the only error there may be."""
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            value = checkpoint.weight(name).data if len(checkpoint.shape(name)) == 2 else checkpoint.vector(name)
            value.clone()
    except ModelLoadError as error:
        assert str(path) in error.message


def test_a_file_cut_anywhere_is_refused_or_read_but_never_worse(tmp_path: Path) -> None:
    whole = tiny_llama().bytes()
    header = len(whole) - len(tiny_llama().data)
    for size in [*range(0, header, 5), *range(header, len(whole), 997)]:
        path = _file(tmp_path, whole[:size])
        with pytest.raises(ModelLoadError):
            open_checkpoint(path)


@pytest.mark.parametrize("value", [0, 1, 0x7F, 0x80, 0xFF])
def test_any_byte_of_the_header_may_be_wrong(value: int, tmp_path: Path) -> None:
    whole = tiny_llama(rope_factors=True)
    content = bytearray(whole.bytes())
    for at in range(value % 3, len(content) - len(whole.data), 3):
        before, content[at] = content[at], value
        _read_everything(_file(tmp_path, bytes(content)))
        content[at] = before


def test_several_bytes_of_the_header_may_be_wrong(tmp_path: Path) -> None:
    rng, whole = random.Random(9), tiny_llama(rope_factors=True)
    content = whole.bytes()
    header = len(content) - len(whole.data)
    for _ in range(300):
        spoiled = bytearray(content)
        for _ in range(rng.randint(2, 12)):
            spoiled[rng.randrange(header)] = rng.choice((0, 1, 0xFF, rng.randrange(256)))
        _read_everything(_file(tmp_path, bytes(spoiled)))


def test_the_tiny_llama_itself_is_sound(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(_file(tmp_path, tiny_llama(rope_factors=True).bytes()))
    assert len(checkpoint.names()) == 11
    assert checkpoint.config.ropes[0].scaling == "factors"
    assert checkpoint.config.ropes[0].params["factors"] == (1.0,) * 8
