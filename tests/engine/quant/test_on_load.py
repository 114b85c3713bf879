"""Quantising on load: errors within what the types allow, the same each time, kept on disk, and damage that is noticed."""

from __future__ import annotations

import gc
import json
import logging
import os
import random
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec import structs
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from app.catalog import inspect
from app.catalog.disk import LocalModel
from app.models.predictor import Predictor
from engine.config import EngineConfig
from engine.errors import ConfigError, ModelLoadError
from engine.models.parts import Matrix
from engine.quant import on_load, stored
from engine.quant.dense import quantized
from engine.quant.stored import FOLDER, Store
from engine.runner.prediction import predict, weigh
from engine.runner.runner import ModelRunner
from engine.weights.loader import fill, open_checkpoint
from engine.weights.safetensors import SafetensorsCheckpoint
from kernels.ops import DENSE, Weight
from kernels.reference import dequant
from tests import models
from tests.engine.models import tiny
from tests.engine.runner.feeding import logits_of
from tests.engine.weights.gguf.written import write_llama
from tests.engine.weights.test_loader import OneSlot
from tests.engine.weights.test_pages import resident_bytes

CONFIG = EngineConfig(block_size=8, max_model_len=64, kernel_precision="exact", kv_cache_memory=1 << 22)
PROMPTS = [random.Random(n).choices(range(99), k=n) for n in (30, 1)]
ERRORS = {"INT8": 0.008, "INT4": 0.1, "FP8": 0.03, "NF4": 0.1}
"""Of normally distributed values, relative; a little more than was measured."""


def dense_folder(path: Path, dtype: torch.dtype = torch.float32, **settings) -> Path:
    model = tiny.saved(path, "llama", **settings)
    if dtype != torch.float32:
        model.to(dtype).save_pretrained(path)
    return path


@pytest.mark.parametrize("qtype", ERRORS)
@pytest.mark.parametrize("source", DENSE)
def test_every_value_is_close_and_groups_of_zeros_stay_zero(qtype: str, source: str) -> None:
    values = torch.randn(300, 256, generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 300).unsqueeze(1)
    values[7, 64:128] = 0
    values[9] = values[9].abs() + 1
    values = values.to(DENSE[source])
    group = 256 if qtype == "FP8" else 64
    dense = dequant.dense(quantized(Weight(source, (300, 256), values), qtype, group))
    errors = (dense - values.float()).norm(dim=1) / values.float().norm(dim=1)
    errors[9] /= 2 if qtype == "NF4" else 1  # which has half of its codes for numbers that are not there
    assert errors.max() < 1.5 * ERRORS[qtype] and errors.mean() < ERRORS[qtype]
    assert (dense[7, 64:128] == 0).all()


def test_int4_is_never_worse_than_the_nearest_of_even_steps() -> None:
    values = torch.randn(200, 128, generator=torch.Generator().manual_seed(3))
    weight = quantized(Weight("F32", (200, 128), values), "INT4", 64)
    ours = (dequant.dense(weight) - values).unflatten(1, (-1, 64)).square().sum(-1)
    groups = values.unflatten(1, (-1, 64))
    low, high = groups.amin(-1, keepdim=True).clamp(max=0), groups.amax(-1, keepdim=True).clamp(min=0)
    step = (high - low) / 15
    point = (-low / step).round()
    plain = (((groups / step).round() + point).clamp(0, 15) - point) * step
    theirs = (plain - groups).square().sum(-1)
    assert (ours <= theirs * (1 + 1e-5)).all() and ours.mean() < 0.95 * theirs.mean()
    assert weight.zeros.unique().numel() > 2


def test_threads_that_start_later_have_as_many_of_torchs_as_before() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        quantized(Weight("F32", (64, 128), torch.ones(64, 128)), "INT8", 128)
        with ThreadPoolExecutor(1) as pool:
            assert (torch.get_num_threads(), pool.submit(torch.get_num_threads).result()) == (3, 3)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("scheme", on_load.SCHEMES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_runs_on_what_was_made_and_its_bytes_were_known(scheme: str, tied: bool, tmp_path: Path) -> None:
    folder = dense_folder(tmp_path / "model", hidden_size=256, intermediate_size=384, head_dim=64, tie_word_embeddings=tied)
    checkpoint = open_checkpoint(folder)
    runner = ModelRunner(structs.replace(CONFIG, quantization=scheme), checkpoint)
    made = on_load.QuantizedCheckpoint(checkpoint, scheme)
    types = {name: slot.weight.qtype for name, slot in runner.model.parameters().items() if isinstance(slot, Matrix)}
    assert types.pop("model.embed_tokens.weight") == types.pop("lm_head.weight", "INT8") == "INT8"
    assert set(types.values()) == {on_load.SCHEMES[scheme].qtype}
    weights = {name: made.weight(name) if len(made.shape(name)) == 2 else made.vector(name) for name in made.names()}
    n_bytes = sum(value.n_bytes if isinstance(value, Weight) else value.nbytes for value in weights.values())
    assert n_bytes == runner.weights_bytes == on_load.weights_bytes(checkpoint, scheme, torch.float32)
    assert n_bytes == on_load.weights_bytes(made, "auto", torch.float32)
    dense = {name: dequant.dense(value) if isinstance(value, Weight) else value for name, value in weights.items()}
    save_file(dense, folder / "model.safetensors")
    expected = logits_of(ModelRunner(CONFIG, open_checkpoint(folder)), PROMPTS, most=16)
    for ours, theirs in zip(logits_of(runner, PROMPTS, most=16), expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * theirs.abs().max()


def test_bytes_of_dense_models_are_what_they_take(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path, torch.bfloat16))
    n_values = sum(torch.Size(checkpoint.shape(name)).numel() for name in checkpoint.names() if "norm" not in name)
    n_norms = sum(torch.Size(checkpoint.shape(name)).numel() for name in checkpoint.names() if "norm" in name)
    assert on_load.weights_bytes(checkpoint, "auto", torch.float32) == 2 * n_values + 4 * n_norms
    assert on_load.weights_bytes(checkpoint, "none", torch.float32) == 4 * n_values + 4 * n_norms


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.mlp.gate.weight", (8, 256), None),
        ("model.layers.0.block_sparse_moe.gate.weight", (8, 256), None),
        ("model.layers.0.mlp.router.weight", (8, 256), None),
        ("model.layers.0.mlp.gate_proj.weight", (512, 256), ("INT4", 64)),
        ("model.layers.0.mlp.down_proj.weight", (512, 96), ("INT4", 32)),
        ("model.layers.0.mlp.down_proj.weight", (512, 100), None),
        ("model.layers.0.mlp.experts.3.w1.weight", (512, 256), ("INT4", 64)),
        ("model.embed_tokens.weight", (512, 256), ("INT8", 128)),
        ("lm_head.weight", (512, 192), ("INT8", 64)),
        ("model.norm.weight", (256,), None),
        ("model.layers.0.linear_attn.conv1d.weight", (256, 1, 4), None),
    ],
)
def test_what_becomes_of_a_tensor(name: str, shape: tuple[int, ...], expected: tuple[str, int] | None) -> None:
    assert on_load.target("int4", name, shape) == expected


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_dense_gguf_files_are_quantised_too(type_name: str, tmp_path: Path) -> None:
    write_llama(tmp_path / "model.gguf", type_name=type_name)
    checkpoint = open_checkpoint(tmp_path / "model.gguf")
    made = on_load.QuantizedCheckpoint(checkpoint, "int8")
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.2.mlp.down_proj.weight", "lm_head.weight"):
        dense, weight = dequant.dense(checkpoint.weight(name)), made.weight(name)
        assert weight.qtype == "INT8" and 0 < (dequant.dense(weight) - dense).norm() < 0.01 * dense.norm()


@pytest.mark.parametrize("name", ["autoround-gptq-4-128-sym", "transformers-nf4", "llmcompressor-fp8-dynamic"])
def test_what_is_quantised_already_is_refused(name: str) -> None:
    with pytest.raises(ModelLoadError, match="is quantised already") as raised:
        on_load.QuantizedCheckpoint(open_checkpoint(models.quantized(name)), "int4")
    assert "--quantization" in raised.value.hint


def test_a_quantised_gguf_is_refused() -> None:
    with pytest.raises(ModelLoadError, match=r"quantised already \(its .* is Q8_0\)"):
        on_load.QuantizedCheckpoint(open_checkpoint(models.smollm2()), "int8")


def kept(checkpoint, store: Store, scheme: str = "int4") -> dict[str, Weight]:
    """Every matrix, as a model asks for them."""
    made = on_load.QuantizedCheckpoint(checkpoint, scheme, store)
    return {name: made.weight(name) for name in reversed(made.names()) if len(made.shape(name)) == 2}


def same(ours: dict[str, Weight], theirs: dict[str, Weight]) -> bool:
    parts = ((ours[name], theirs[name], part) for name in theirs for part in ("data", "scales", "zeros"))
    pairs = [(getattr(a, part), getattr(b, part)) for a, b, part in parts if getattr(b, part) is not None]
    return ours.keys() == theirs.keys() and all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


@pytest.mark.parametrize("scheme", ["int4", "int8", "fp8", "nf4"])
def test_the_second_load_reads_what_the_first_one_kept(scheme: str, tmp_path: Path, monkeypatch, caplog) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    store = Store(tmp_path / "weights", 1 << 24)
    first = kept(checkpoint, store, scheme)
    (file,) = store.files()
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700 or os.name != "posix"
    assert [path.name for path in store.folder.iterdir()] == [file.name]
    with safe_open(file, framework="pt") as opened:  # others can read it as well
        assert len(opened.keys()) >= 2 * len(first)
    monkeypatch.setattr(on_load, "quantized", lambda *_: pytest.fail("quantised again"))
    assert same(kept(checkpoint, store, scheme), first)
    assert not caplog.records


def test_other_schemes_and_other_models_have_files_of_their_own(tmp_path: Path) -> None:
    store = Store(tmp_path / "weights", 1 << 24)
    for name, settings in (("a", {}), ("b", {"rms_norm_eps": 1e-3})):
        checkpoint = open_checkpoint(dense_folder(tmp_path / name, **settings))
        for scheme in ("int4", "int8"):
            kept(checkpoint, store, scheme)
    assert len(store.files()) == 4


@pytest.mark.parametrize("place", ["first byte", "header", "data", "cut", "emptied", "another's"])
def test_damage_is_noticed_and_made_good(place: str, tmp_path: Path, caplog) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    store = Store(tmp_path / "weights", 1 << 24)
    first = kept(checkpoint, store)
    (file,) = store.files()
    whole = bytearray(file.read_bytes())
    if place == "cut":
        del whole[-1000:]
    elif place == "emptied":
        whole.clear()
    elif place == "another's":
        whole = whole.replace(b"[99,64]", b"[64,99]")
    else:
        whole[{"first byte": 0, "header": 40, "data": len(whole) * 2 // 3}[place]] ^= 0x11
    file.write_bytes(whole)
    with caplog.at_level(logging.WARNING):
        assert same(kept(checkpoint, store), first)
    (record,) = caplog.records
    assert str(file) in record.getMessage() and "damaged" in record.getMessage()
    for _ in range(2):  # the load after a spoiled tensor makes all of the file again
        assert same(kept(checkpoint, store), first)
    caplog.clear()
    assert len(store.files()) == 1 and same(kept(checkpoint, store), first) and not caplog.records


def test_a_load_that_stops_halfway_keeps_nothing(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    store = Store(tmp_path / "weights", 1 << 24)
    made = on_load.QuantizedCheckpoint(checkpoint, "int8", store)
    made.weight("model.layers.0.mlp.up_proj.weight")
    assert [path.suffix for path in store.folder.iterdir()] == [".partial"]
    del made
    assert list(store.folder.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_dense_model_is_never_whole_in_memory(tmp_path: Path) -> None:
    gc.collect()
    folder = dense_folder(tmp_path / "model", hidden_size=512, intermediate_size=2048, head_dim=32, num_hidden_layers=6)
    file, checkpoint = folder / "model.safetensors", open_checkpoint(folder)
    made = on_load.QuantizedCheckpoint(checkpoint, "int4", Store(tmp_path / "weights", 1 << 26))
    slots = {name: OneSlot(made.shape(name)) for name in made.names()}
    most, reports = [], []

    def progress(done: int, total: int) -> None:
        most.append(resident_bytes(file))
        reports.append((done, total))

    model = SimpleNamespace(parameters=lambda: slots)
    assert made.digest  # looks at every tensor, which is not what is measured
    for name in made.names():
        checkpoint.give_back(name)
    fill(model, made, progress=progress)
    largest = max(checkpoint.stored_bytes(name) for name in checkpoint.names())
    assert max(most) < 2 * largest < checkpoint.n_bytes / 4
    assert reports[-1] == (checkpoint.n_bytes, checkpoint.n_bytes) and len(reports) == len(slots)


def test_a_tied_output_matrix_that_is_there_too_is_not_waited_for(tmp_path: Path) -> None:
    config = dense_folder(tmp_path / "model", tie_word_embeddings=False) / "config.json"
    config.write_text(config.read_text().replace('"tie_word_embeddings": false', '"tie_word_embeddings": true'))
    kept_in = {"quantization": "int8", "weights_disk_folder": str(tmp_path / "weights")}
    ModelRunner(structs.replace(CONFIG, **kept_in), open_checkpoint(tmp_path / "model"))
    assert [path.suffix for path in (tmp_path / "weights" / FOLDER).iterdir()] == [".safetensors"]


NAME = f"{'0a' * 20}-nf4-64.safetensors"


def test_what_nobody_writes_any_more_is_removed(tmp_path: Path) -> None:
    """Whatever its process's number: one of another container may have ours, or none here, and still write."""
    checkpoint, store = open_checkpoint(dense_folder(tmp_path / "model")), Store(tmp_path, 1 << 24)
    store.folder.mkdir()
    names = [f"{NAME}.{pid}-1700000000-00c0ffee.partial" for pid in (2**22 + 5, os.getpid())]
    for age, is_there in ((stored.ABANDONED_S / 2, True), (stored.ABANDONED_S * 2, False)):
        for name in names:
            (store.folder / name).touch()
            os.utime(store.folder / name, (time.time() - age,) * 2)
        kept(checkpoint, store)
        assert [(store.folder / name).exists() for name in names] == [is_there] * 2


def test_what_a_person_keeps_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    folder, checkpoint = tmp_path / "mine", open_checkpoint(dense_folder(tmp_path / "model"))
    names = ["model.safetensors", "x.gguf.partial", "x.partial", NAME, f"{NAME}.7-7-00000007.partial", "notes.txt"]
    theirs = [folder / name for name in names]
    theirs += [folder / FOLDER / name for name in names if not name.startswith("0a")]
    theirs += [
        folder / FOLDER / name for name in (f"x{NAME}", f"{NAME}.1.partial", f"{NAME.upper()}", "0a0a-int4-64.safetensors")
    ]
    (folder / FOLDER).mkdir(parents=True)
    folder.chmod(0o755)
    for path in theirs:
        path.write_bytes(b"0" * 2000)
        os.utime(path, (1, 1))
    kept(checkpoint, Store(folder, 1 << 24))
    for space in (1000, None, 1 << 24):  # the first makes all room there is
        kept(checkpoint, Store(folder, space), "int8")
    assert all(path.read_bytes() == b"0" * 2000 for path in theirs)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_a_lower_limit_removes_what_is_above_it(tmp_path: Path) -> None:
    checkpoint, store = open_checkpoint(dense_folder(tmp_path / "model")), Store(tmp_path / "weights", 1 << 24)
    for i, scheme in enumerate(("int8", "fp8", "int4")):
        kept(checkpoint, store, scheme)
        os.utime(store.files()[-1], (i, i))
    *_, last = store.files()
    size = last.stat().st_size
    kept(checkpoint, Store(tmp_path / "weights", int(1.5 * size)), "int4")
    assert store.files() == [last]
    kept(checkpoint, Store(tmp_path / "weights", size // 2), "int4")
    assert store.files() == []


def test_the_default_limit_is_a_share_of_what_would_be_free_without_these_files(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stored.shutil, "disk_usage", lambda _: SimpleNamespace(free=4000))
    store = Store(tmp_path)
    store.folder.mkdir()
    assert store.space() == 1000
    (store.folder / NAME).write_bytes(bytes(2000))
    assert store.space() == 1500


def test_room_is_taken_before_others_are_looked_at(tmp_path: Path, caplog) -> None:
    """Two that begin at once do not both take the last room."""
    checkpoint, store = open_checkpoint(dense_folder(tmp_path / "model")), Store(tmp_path / "weights", 1 << 24)
    kept(checkpoint, store)
    (file,) = store.files()
    small = Store(tmp_path / "weights", int(1.5 * file.stat().st_size))
    file.unlink()
    first, second = (on_load.QuantizedCheckpoint(checkpoint, scheme, small) for scheme in ("int4", "nf4"))
    names = [name for name in first.names() if len(first.shape(name)) == 2]
    first.weight(names[0])
    assert not caplog.records
    second.weight(names[0])
    assert "others are writing all that --weights-disk-space allows" in caplog.text
    for name in names[1:]:
        first.weight(name)
        second.weight(name)
    assert len(small.files()) == 1 and len(list(small.folder.iterdir())) == 1


def test_asking_whether_a_model_fits_changes_nothing_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    """Nor does it read the file's bytes."""
    folder, weights = dense_folder(tmp_path / "model"), tmp_path / "weights"
    settings = structs.replace(CONFIG, quantization="int4", weights_disk_folder=str(weights), weights_disk_space=1 << 24)
    kept(open_checkpoint(folder), Store(weights, 1 << 24), "int8")
    before = [(path, path.stat().st_mtime_ns) for path in (weights / FOLDER).iterdir()]
    tight = structs.replace(settings, weights_disk_space=1000)
    for config in (settings, tight):
        assert inspect.describe(LocalModel("model", folder, "safetensors", 0, managed=False), config)["fits_here"]
    monkeypatch.setattr(SafetensorsCheckpoint, "digest", property(lambda _: pytest.fail("bytes were read")))
    for config in (settings, tight):
        assert Predictor(folder, config).in_memory().weights_bytes > 0
        predict(config, weigh(on_load.opened(open_checkpoint(folder), config, keeps=True), config))
    with pytest.raises(ConfigError):
        ModelRunner(structs.replace(tight, kv_cache_memory=1 << 50), open_checkpoint(folder))
    assert [(path, path.stat().st_mtime_ns) for path in (weights / FOLDER).iterdir()] == before


@pytest.mark.parametrize("change", ["bytes", "configuration", "Pagewell", "nothing", "scheme of the same name"])
def test_weights_are_made_again_when_what_they_are_made_of_or_by_changes(change: str, tmp_path: Path, monkeypatch) -> None:
    """Bytes: of which the digest has no sample."""
    folder, store = dense_folder(tmp_path / "model", hidden_size=512), Store(tmp_path / "weights", 1 << 26)
    first = kept(open_checkpoint(folder), store, "nf4")
    digest = open_checkpoint(folder).digest
    if change == "bytes":
        tensors = load_file(folder / "model.safetensors")
        tensors["model.embed_tokens.weight"].view(-1)[30_000] += 1
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        assert open_checkpoint(folder).digest == digest
    elif change == "configuration":
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    elif change == "Pagewell":
        monkeypatch.setattr(on_load.metadata, "version", lambda _: "another")
    again = kept(open_checkpoint(folder), store, "bitsandbytes" if change == "scheme of the same name" else "nf4")
    assert same(again, first) == (change != "bytes")
    assert len(store.files()) == (1 if change in ("nothing", "scheme of the same name") else 2)


def test_settings_that_make_the_same_share_their_kv(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    schemes = ("nf4", "bitsandbytes", "int4", "auto", "none")
    extras = [ModelRunner(structs.replace(CONFIG, quantization=scheme), checkpoint).kv_extras for scheme in schemes]
    assert extras[0] == extras[1] and len({json.dumps(of_one, sort_keys=True) for of_one in extras}) == 4


def test_the_longest_unused_make_room(tmp_path: Path) -> None:
    store = Store(tmp_path / "weights", 1 << 24)
    checkpoints = [open_checkpoint(dense_folder(tmp_path / str(i), rms_norm_eps=10.0**-i)) for i in range(3, 6)]
    for i, checkpoint in enumerate(checkpoints[:2]):
        kept(checkpoint, store)
        os.utime(store.files()[-1], (i, i))
    kept(checkpoints[0], store)  # used now
    unused, used = store.files()
    small = Store(tmp_path / "weights", int(2.5 * used.stat().st_size))
    kept(checkpoints[2], small)
    assert used in small.files() and unused not in small.files() and len(small.files()) == 2


def test_no_room_is_said_and_nothing_is_kept(tmp_path: Path, caplog) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    store = Store(tmp_path / "weights", 1000)
    assert kept(checkpoint, store)
    assert not store.files() and "1000" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full")
def test_a_full_disk_is_said_once_and_the_model_loads(tmp_path: Path, monkeypatch, caplog) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    store = Store(tmp_path / "weights", 1 << 24)
    opened = Path.open

    def of_a_full_disk(self: Path, *args, **settings):
        return opened(Path("/dev/full"), "wb") if self.suffix == stored.PARTIAL else opened(self, *args, **settings)

    monkeypatch.setattr(Path, "open", of_a_full_disk)
    first = kept(checkpoint, store)
    assert first and len(caplog.records) == 1 and not store.files()


def test_the_setting_names_folder_and_space(tmp_path: Path, caplog) -> None:
    checkpoint = open_checkpoint(dense_folder(tmp_path / "model"))
    folder = tmp_path / "kept"
    settings = structs.replace(CONFIG, quantization="int8", weights_disk_folder=str(folder))
    ModelRunner(structs.replace(settings, weights_disk_space=0), checkpoint)
    assert not folder.exists()
    ModelRunner(settings, checkpoint)
    assert [path.suffix for path in (folder / FOLDER).iterdir()] == [".safetensors"] and len(list(folder.iterdir())) == 1
    digests = {
        ModelRunner(structs.replace(CONFIG, quantization=scheme), checkpoint).digest for scheme in ("auto", "int8", "int4")
    }
    assert len(digests) == 3
    (tmp_path / "file").touch()
    ModelRunner(structs.replace(settings, weights_disk_folder=str(tmp_path / "file")), checkpoint)
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("scheme", ["nf4", "bitsandbytes"])
def test_nf4_has_the_integers_and_scales_of_bitsandbytes(scheme: str) -> None:
    theirs = open_checkpoint(models.quantized("transformers-nf4"))
    ours = on_load.opened(open_checkpoint(models.quantized("tiny-base", of=".")), EngineConfig(quantization=scheme))
    names = [name for name in theirs.names() if theirs.qtype(name) == "NF4"]
    assert len(names) == 14
    for name in names:
        made, stored = ours.weight(name), theirs.weight(name)
        assert torch.equal(made.data, stored.data) and torch.equal(made.scales, stored.scales), name
