"""The doctor: what this machine is, how the model does on it, what is slow and why. It loads the model and measures."""

from __future__ import annotations

import platform
import shutil
import sqlite3
import time
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import torch

from app import paths
from app.bench.others import Others
from app.catalog.disk import LocalModel, names_of
from app.machine import Machine, this_machine
from app.options import format_bytes
from app.settings import Settings
from engine.async_engine import AsyncEngine
from engine.loading import check_native
from engine.types import Finished, SamplingParams, Usage
from kernels import registry
from kernels.cpu import launch

PACKAGES = (
    "pagewell",
    "torch",
    "triton",
    "numpy",
    "tokenizers",
    "safetensors",
    "litestar",
    "uvicorn",
    "textual",
    "huggingface-hub",
)
PROMPT_TOKENS = 64
OUTPUT_TOKENS = 8


@dataclass(slots=True)
class Report:
    """Facts in sections, and advice: what is slow or in the way, and what would help."""

    sections: dict[str, dict[str, str]] = field(default_factory=dict)
    advice: list[str] = field(default_factory=list)


def examine(settings: Settings) -> Report:
    """All that can be said without a model. ConfigError as when serving."""
    check_native()
    machine = this_machine()
    report = Report()
    report.sections["machine"] = {
        "system": machine.system,
        "processor": f"{machine.processor}, {machine.n_cores} cores, {machine.n_threads} threads",
        "instruction sets": " ".join(machine.simd) or "none known",
        "memory": f"{format_bytes(machine.free_bytes)} free of {format_bytes(machine.memory_bytes)}",
        "device": _device(settings),
        "CPU operators": _operators(machine, settings),
    }
    report.sections["versions"] = {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version}
    for package in PACKAGES:
        report.sections["versions"][package] = _version(package)
    report.sections["folders"] = {
        "chats": str(paths.database_path()),
        "models": f"{paths.models_dir()} ({format_bytes(_free_bytes(paths.models_dir()))} free)",
        "settings": str(settings.config_path or f"none ({paths.config_dir()})"),
    }
    report.advice += _advice(machine, settings)
    return report


def _free_bytes(folder: Path) -> int:
    """Room on the disk where a folder is, or would be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


async def try_model(report: Report, settings: Settings, model: LocalModel) -> None:
    """Load the model as `serve` would, answer once, and add what was seen. ModelLoadError, ConfigError as when serving."""
    began = time.perf_counter()
    engine = await AsyncEngine.load(model.path, settings.engine_for(*names_of(model)))
    load_s = time.perf_counter() - began
    try:
        await _answer(engine, seed=0)  # the first steps also pay for warming up
        usage = await _answer(engine, seed=1)
    finally:
        await engine.close()
    info = engine.info
    assert usage.ttft_s is not None
    prefill_s = usage.ttft_s - usage.queued_s
    decode_s = (usage.total_s - usage.ttft_s) / (usage.n_output - 1)
    report.sections["model"] = {
        "name": f"{model.name} ({info.family}, {info.n_params / 1e6:.0f}M parameters, {info.quantization})",
        "loaded in": f"{load_s:.1f} s",
        "fits": f"window of {info.max_model_len} tokens; weights {format_bytes(info.weights_bytes)}, "
        f"KV cache {format_bytes(info.kv_bytes)}",
        "takes at most": f"{format_bytes(info.needed_bytes)}, with host memory, steps and the tokenizer",
        "KV cache": "; ".join(
            f"{len(group.layers)} layers, {group.name}: {group.n_blocks:,} blocks of "
            + (format_bytes(group.block_bytes) if group.recurrent else f"{info.block_size} tokens")
            for group in info.kv_groups
        ),
        "limited by": info.memory_note,
        "prefill": f"{usage.n_prompt / prefill_s:.0f} tok/s",
        "decode": f"{1 / decode_s:.1f} tok/s, {info.weights_bytes / decode_s / 1e9:.1f} GB/s of weights",
    }
    resolved = registry.resolved()
    report.sections["kernels"] = {
        f"{r.op} {r.spec}": r.source + (f" (not {'; not '.join(r.reasons)})" if r.reasons else "") for r in resolved
    }
    plain = sorted({r.op for r in resolved if r.source == "reference"})
    if plain:
        report.advice.append(
            f"Runs in plain torch, for want of a faster kernel on this device and format: {', '.join(plain)}. "
            "Quantised weights are unpacked again in each step, which costs more than the product itself."
        )


def lines(report: Report) -> list[str]:
    """The report for a person."""
    out = []
    for title, rows in report.sections.items():
        out.append(title)
        width = max(map(len, rows))
        out += [f"  {name:{width}}  {value}" for name, value in rows.items()]
    out.append("what is slow, and why" if report.advice else "nothing stands in the way")
    return out + [f"  - {line}" for line in report.advice]


async def _answer(engine: AsyncEngine, seed: int) -> Usage:
    """A greedy answer to a prompt that no cache knows."""
    n_vocab = engine.info.n_vocab
    prompt = [(seed * 7919 + index * 104_729) % (n_vocab // 2) + n_vocab // 4 for index in range(PROMPT_TOKENS)]
    params = SamplingParams(max_tokens=OUTPUT_TOKENS, temperature=0, ignore_eos=True)
    async for event in engine.submit(prompt, params):
        if isinstance(event, Finished):
            return event.usage
    raise AssertionError("an event stream ends with Finished")


def _device(settings: Settings) -> str:
    if torch.cuda.is_available() and settings.engine.device != "cpu":
        free, total = torch.cuda.mem_get_info()
        return f"{torch.cuda.get_device_name()}, {format_bytes(free)} free of {format_bytes(total)}"
    return "cpu"


def _operators(machine: Machine, settings: Settings) -> str:
    if launch.missing is not None:
        return f"plain torch: {launch.missing}"
    n_threads = settings.engine.threads or machine.n_cores
    return f"native, {launch.native.level()} of {', '.join(launch.native.levels())}, {n_threads} threads"


def _advice(machine: Machine, settings: Settings) -> list[str]:
    found = []
    if not torch.cuda.is_available() and Path("/dev/nvidia0").exists():
        built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "is a build without CUDA"
        found.append(f"There is an NVIDIA GPU, but torch does not see it: torch {torch.__version__} {built}.")
    if launch.missing is not None:
        found.append(
            f"Plain torch computes on the CPU, many times slower than native operators: {launch.missing}. {launch.remedy}"
        )
    elif (level := launch.native.level()) != (best := launch.native.levels()[-1]):
        found.append(f"{launch.LEVEL_ENV} keeps the CPU operators at {level}, though this machine has {best}.")
    if settings.engine.threads is not None and settings.engine.threads < machine.n_cores:
        found.append(f"threads is {settings.engine.threads}, of {machine.n_cores} cores that could be used.")
    others = Others()
    time.sleep(0.5)
    if (busy := others.cores()) > 0.5:
        found.append(f"Other programs keep {busy:.1f} of {machine.n_threads} threads busy; every figure here suffers from it.")
    if settings.engine.debug_checks:
        found.append("debug_checks (or env = development) checks the whole KV cache after each step.")
    if not settings.engine.enable_prefix_caching:
        found.append("enable_prefix_caching is off: prompts that begin alike are computed anew each time.")
    is_cpu = settings.engine.device == "cpu" or not torch.cuda.is_available()
    if settings.engine.dtype in ("float16", "bfloat16") and is_cpu:
        found.append(f"dtype is {settings.engine.dtype}, for which a CPU has no native operators: leave --dtype at auto.")
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
