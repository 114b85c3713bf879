"""Models by name: which one a request means, what comes and goes on disk, and what each is loaded with."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from app import settings
from app.catalog.disk import LocalModel
from app.errors import UnknownModel
from app.models.host import ModelHost
from app.models.memory import Memory
from app.models.pool import ModelPool
from engine.errors import ConfigError, ModelLoadError
from engine.kv.groups import KVGroup
from tests import models
from tests.app.models.fakes import FakeEngine, Loads
from tests.engine.models import tiny


def local(name: str, origin: str = "") -> LocalModel:
    return LocalModel(name, Path("/models") / f"{name.replace('/', '-')}.gguf", "gguf", 1, False, origin)


class Disk:
    """What is on disk, and the pool over it."""

    def __init__(self, *found: LocalModel, aliases: dict[str, str] | None = None) -> None:
        self.found = list(found)
        self.n_looks = 0
        main = local("main-model")
        self.pool = ModelPool(
            ModelHost(Loads(), name="served", model=main), find=self._find, make=self._make, aliases=aliases or {}
        )

    def _find(self) -> list[LocalModel]:
        self.n_looks += 1
        return self.found

    @staticmethod
    def _make(model: LocalModel) -> ModelHost:
        return ModelHost(Loads(), name=model.name, model=model)

    @property
    def names(self) -> list[str]:
        return [host.name for host in self.pool.hosts]


async def test_a_request_that_names_none_gets_the_main_model() -> None:
    pool = Disk().pool
    assert pool.get(None) is pool.get("") is pool.get("Served") is pool.get("main-model") is pool.main


async def test_models_on_disk_are_found_when_they_are_asked_for() -> None:
    disk = Disk(local("qwen3-4b"), local("ollama/llama3.2:1b", "Ollama"))
    host = await disk.pool.find("QWEN3-4B")
    assert host.name == "qwen3-4b" and host.state == "unloaded"
    assert (await disk.pool.find("llama3.2:1b")).name == "ollama/llama3.2:1b"
    assert disk.names == ["served", "ollama/llama3.2:1b", "qwen3-4b"] and disk.n_looks == 1


async def test_a_short_name_that_two_programs_have_means_neither() -> None:
    disk = Disk(local("ollama/m", "Ollama"), local("lmstudio/m", "LM Studio"))
    with pytest.raises(UnknownModel, match="`lmstudio/m`, `ollama/m`"):
        await disk.pool.find("m")


async def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    disk = Disk(local("qwen3-4b"), local("qwen3-8b"), local("gemma-3-4b"))
    with pytest.raises(UnknownModel, match=r"`qwen-3-4b` does not exist here.") as unknown:
        await disk.pool.find("qwen-3-4b")
    assert unknown.value.hint.startswith("This server has `qwen3-4b`") and "and 1 more" in unknown.value.hint


async def test_a_path_is_no_name() -> None:
    with pytest.raises(UnknownModel):
        await Disk().pool.find(str(models.smollm2()))


async def test_aliases_lead_to_their_models(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(local("qwen2.5-coder-7b"), aliases={"Coder": "Qwen2.5-Coder-7B", "me": "main-model", "lost": "nowhere"})
    assert (await disk.pool.find("coder")).name == "qwen2.5-coder-7b" and disk.pool.get("me") is disk.pool.main
    assert "lost=nowhere" in caplog.text
    with pytest.raises(UnknownModel):
        await disk.pool.find("lost")


async def test_what_came_and_went_on_disk_is_noticed_but_nothing_in_memory_is_forgotten() -> None:
    disk = Disk(local("a"), local("b"))
    joined: list[str] = []
    disk.pool.each_host(lambda host: joined.append(host.name))
    await disk.pool.look()
    a, b = disk.pool.get("a"), disk.pool.get("b")
    a._take_over(FakeEngine())  # type: ignore[arg-type]
    disk.found = [local("c")]
    await disk.pool.look()
    assert disk.names == ["served", "a", "b"], "looked again too soon"
    await disk.pool.look(fresh_s=0)
    assert disk.names == ["served", "a", "c"] and joined == ["served", "a", "b", "c"]
    assert disk.pool.get("a") is a and b not in disk.pool.hosts
    await a.close()


async def test_models_of_one_name_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    places = ("one", "two", "three")
    disk = Disk(
        *(LocalModel(name, Path(f"/{place}/m.gguf"), "gguf", 1, False) for name, place in zip("mMm", places, strict=True))
    )
    disk.found.append(local("served"))
    for _ in range(2):
        await disk.pool.look(fresh_s=0)
    assert disk.names == ["served", "m", "M-2", "m-3", "served-2"]
    assert [disk.pool.get(name).model.path.parent.name for name in ("m", "m-2", "M-3")] == list(places)
    assert caplog.text.count("Another model is called") == 3 and "/two/m.gguf is M-2" in caplog.text


async def test_a_model_whose_own_settings_do_not_go_together_keeps_no_other_away(caplog: pytest.LogCaptureFixture) -> None:
    tables = {"o/m": {"max_num_seqs": 200}, "m": {"max_num_batched_tokens": 100}}
    pool = from_settings(models.smollm2(), {"max_num_batched_tokens": 300, "max_num_seqs": 50}, models=tables)
    pool._find = lambda: [local("o/m", "Ollama"), local("other")]
    for _ in range(2):
        await pool.look(fresh_s=0)
    assert [host.name for host in pool.hosts] == ["smol", "other"] and caplog.text.count("o-m.gguf is passed over") == 1


@pytest.mark.parametrize("error", [PermissionError("not yours"), RecursionError("too deep"), ModelLoadError("half a file")])
async def test_a_disk_that_cannot_be_read_changes_nothing(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk(local("a"))
    await disk.pool.look()
    n_tries = 0

    def fail() -> list[LocalModel]:
        nonlocal n_tries
        n_tries += 1
        raise error

    disk.pool._find = fail
    await disk.pool.look(fresh_s=0)
    assert disk.names == ["served", "a"] and str(error) in caplog.text
    await disk.pool.look(fresh_s=60)
    assert n_tries == 1, "it is not tried for each request"


async def test_the_event_loop_waits_for_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(local("a"), local("b"))
    threads: set[int] = set()
    real = os.stat, os.path.realpath

    def watched(n: int) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            threads.add(threading.get_ident())
            return real[n](*args, **options)

        return call

    monkeypatch.setattr("os.stat", watched(0))
    monkeypatch.setattr("os.path.realpath", watched(1))
    for _ in range(2):
        await disk.pool.look(fresh_s=0)
    assert threads and threading.get_ident() not in threads


def from_settings(path: Path, values: dict[str, Any] | None = None, **rest: Any) -> ModelPool:
    made = settings.make(values or {}, **rest)
    return ModelPool.from_settings(made, LocalModel("smol", path, "gguf", 1, False))


def test_names_that_clients_see() -> None:
    path = models.smollm2()
    assert from_settings(path).main.name == "smol"
    assert from_settings(path, {"served_model_name": "x"}).main.name == "x"
    aliased = from_settings(path, {"model_aliases": ("fast=smol",)})
    assert aliased.main.name == "fast" and aliased.get("smol") is aliased.main


async def test_a_server_with_a_part_or_without_switching_has_one_model() -> None:
    for values in ({"switch_models": False}, {"role": "decode", "swap_space": 1 << 20}):
        pool = from_settings(models.smollm2(), values)
        await pool.look(fresh_s=0)
        assert len(pool.hosts) == 1
        with pytest.raises(UnknownModel):
            await pool.find("qwen3-4b")


def test_a_models_own_settings_hold_for_it_and_lose_to_the_command_line() -> None:
    own = {"smol": {"max_model_len": 512, "kv_cache_dtype": "int8"}, "other": {"max_model_len": 64}}
    host = from_settings(models.smollm2(), {"max_model_len": 1024}, models=own, given=()).main
    assert (host.config.max_model_len, host.config.kv_cache_dtype) == (512, "int8")
    host = from_settings(models.smollm2(), {"max_model_len": 1024}, models=own, given=("max_model_len",)).main
    assert (host.config.max_model_len, host.config.kv_cache_dtype) == (1024, "int8")


@pytest.mark.parametrize("table", ["ollama/q:1b", "Q:1B", "coder", "lmstudio/ada/r-GGUF", "ada/r-gguf:q4_1", "ada/r-GGUF"])
def test_a_models_own_settings_stand_under_any_name_that_a_request_may_have(table: str) -> None:
    found = LocalModel("ollama/q:1b", models.smollm2(), "gguf", 1, False, "Ollama")
    if "r-" in table.lower():
        found = LocalModel("lmstudio/ada/r-GGUF", models.smollm2(), "gguf", 1, False, "LM Studio")
    aliases = {"model_aliases": ("coder=q:1b",)}
    pool = from_settings(models.smollm2(), aliases, models={table: {"max_model_len": 512}})
    assert pool._make(found).config.max_model_len == 512 and pool.main.config.max_model_len is None


def test_all_tables_of_a_model_count_the_most_exact_wins() -> None:
    tables = {
        "fast": {"max_model_len": 64},
        "smol": {"max_model_len": 128, "kv_cache_dtype": "int8", "dtype": "float32"},
        "smol:q4_1": {"kv_cache_dtype": "float16"},
    }
    config = from_settings(models.smollm2(), {"model_aliases": ("fast=smol",)}, models=tables).main.config
    assert (config.max_model_len, config.kv_cache_dtype, config.dtype) == (64, "float16", "float32")


async def test_a_table_that_no_model_has_the_name_of_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    named = {name: {"max_model_len": 64} for name in ("smol", "fast", "q:1b", "qwen-4b")}
    pool = from_settings(models.smollm2(), {"model_aliases": ("fast=smol",)}, models=named)
    pool._find = lambda: [local("ollama/q:1b", "Ollama"), local("ollama/ada/q:1b", "Ollama")]
    for _ in range(2):
        await pool.look(fresh_s=0)
    assert caplog.text.count("but there is no such model on disk") == 1 and '[models."qwen-4b"]' in caplog.text


def test_a_window_beyond_the_models_is_refused_for_the_main_one_and_cut_for_others() -> None:
    pool = from_settings(models.smollm2(), {"max_model_len": 100_000})
    with pytest.raises(ConfigError, match="made for 8,192 tokens"):
        pool.main.window_in(8 << 30)
    assert pool._make(LocalModel("x", models.smollm2(), "gguf", 1, False)).window_in(8 << 30) == 8192


def test_quantization_of_all_is_for_the_dense_ones_beside_the_main_model(tmp_path: Path) -> None:
    tiny.saved(tmp_path, "llama")
    dense = LocalModel("dense", tmp_path, "safetensors", 1, False)
    quantized = LocalModel("x", models.smollm2(), "gguf", 1, False)
    pool = from_settings(models.smollm2(), {"quantization": "int8"})
    with pytest.raises(ModelLoadError, match="quantised already"):
        pool.main.window_in(8 << 30)
    in_force = {model.name: pool._make(model).window_in.__self__.config.quantization for model in (dense, quantized)}
    assert in_force == {"dense": "int8", "x": "auto"} and pool._make(quantized).window_in(8 << 30) == 8192
    asked = from_settings(dense.path, models={"x": {"quantization": "int8"}})
    with pytest.raises(ModelLoadError, match="quantised already"):
        asked._make(quantized).window_in(8 << 30)


def test_what_a_model_would_take_is_known_before_it_is_loaded(tmp_path: Path) -> None:
    window_in = from_settings(models.smollm2()).main.window_in
    assert window_in(8 << 30) == 8192 > window_in(500 << 20) > 16
    with pytest.raises(ConfigError, match="The model does not fit into memory"):
        window_in(100 << 20)
    damaged = tmp_path / "x.gguf"
    damaged.write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(ModelLoadError):
        from_settings(damaged).main.window_in(8 << 30)
    damaged.unlink()
    damaged.hardlink_to(models.smollm2())
    assert from_settings(damaged).main.window_in(8 << 30) == 8192


async def test_memory_that_a_cache_has_not_taken_yet_is_not_free(monkeypatch: pytest.MonkeyPatch) -> None:
    rss = 1000
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=rss)))
    memory = Memory(SimpleNamespace(type="cpu"), free=lambda: 10_000)  # type: ignore[arg-type]
    groups = (KVGroup(n_blocks=4, layers=(0,), block_bytes=10, n_host_blocks=5),)
    info = SimpleNamespace(weights_bytes=300, kv_bytes=650, kv_groups=groups)
    host = ModelHost(Loads(), name="m")
    assert memory.free_bytes([host]) == 10_000
    host._take_over(SimpleNamespace(info=info, n_live=0, is_alive=True, close=FakeEngine().close))  # type: ignore[arg-type]
    assert memory.promised_bytes([host]) == 1000 and memory.free_bytes([host]) == 9000
    rss += 400
    assert memory.free_bytes([host]) == 9400
    assert memory.free_bytes([host], without=[host]) == 10_400  # what it has taken comes back
    rss += 5000
    assert memory.promised_bytes([host]) == 0
    await host.close()


async def test_what_a_model_on_a_gpu_has_in_the_hosts_memory_does_not_come_back_on_the_gpu() -> None:
    memory = Memory(SimpleNamespace(type="cuda"), free=lambda: 10_000)  # type: ignore[arg-type]
    groups = (KVGroup(n_blocks=4, layers=(0,), block_bytes=10, n_host_blocks=500),)
    info = SimpleNamespace(weights_bytes=300, kv_bytes=650, kv_groups=groups)
    host = ModelHost(Loads(), name="m")
    host._take_over(SimpleNamespace(info=info, n_live=0, is_alive=True, close=FakeEngine().close))  # type: ignore[arg-type]
    assert (memory.free_bytes([host]), memory.free_bytes([host], without=[host])) == (10_000, 10_950)
    await host.close()


def test_settings_of_one_model_replace_nothing_else() -> None:
    made = settings.make({"max_num_seqs": 7}, models={"M": {"kv_cache_dtype": "int8"}})
    assert made.engine_for("m") == structs.replace(made.engine, kv_cache_dtype="int8")
    assert made.engine_for("n") is made.engine
