"""From a path to a running core: checkpoint, tokenizer, chat template, memory, runner."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from msgspec import structs

from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError, ModelLoadError, TemplateError
from engine.info import ModelInfo
from engine.kv.hashing import root_key
from engine.kv.tiers.connectors import Connectors
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.disk_tier import DiskTier
from engine.kv.tiers.shared import SharedStore
from engine.kv.tiers.shared_folder import KIND_DIGITS, SharedFolder
from engine.kv.tiers.shared_tier import SharedTier
from engine.models.parts import Matrix
from engine.runner.memory import USEFUL_WINDOW
from engine.runner.prediction import device_of
from engine.runner.runner import ModelRunner
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from engine.types import Event
from engine.weights.loader import open_checkpoint
from kernels.cpu import launch
from kernels.registry import KernelMissing

log = logging.getLogger(__name__)

DISK_MOST, DISK_SHARE = 8 << 30, 10
"""Disk for the KV cache: at most so many bytes, and so small a part of what is free."""
SHARED_MOST, SHARED_SHARE = 2 << 30, 4
"""As much of shared memory, for KV on its way to another process."""
LARGE_BYTES = 8 << 20
_M_MMAP_THRESHOLD = -3
"""Of malloc.h of glibc."""

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True)
class Loaded:
    make_core: Callable[[Callable[[list[Event]], None]], EngineCore]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    """None where the checkpoint has one that cannot be read; the log says why."""
    info: ModelInfo


def _main_format(runner: ModelRunner) -> str:
    """The weight type that most bytes of the filled model are in."""
    n_bytes: Counter[str] = Counter()
    for slot in runner.model.parameters().values():
        if isinstance(slot, Matrix):
            n_bytes[slot.weight.qtype] += slot.weight.n_bytes
    return n_bytes.most_common(1)[0][0]


def check_native() -> None:
    """Raise ConfigError where the environment names native operators that are not there."""
    if launch.misnamed:
        raise ConfigError(f"{launch.missing}.", launch.remedy)


def give_back_freed_memory() -> None:
    """To the system: glibc keeps what making a tokenizer took for a while, up to a hundred megabytes, unless it is asked, and
    torch all that a model had on a GPU, which is then free for nobody else."""
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _keep_large_memory_apart() -> None:
    """Logits come and go by the megabyte: where glibc takes them from its heap, what is small and stays pins the gaps they leave,
    which the next ones, being aligned, do not fit into. Mapped one by one they return to the system.
    """
    if sys.platform == "linux" and (option := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        option(_M_MMAP_THRESHOLD, LARGE_BYTES)


def load_core(path: Path, config: EngineConfig, progress: Progress | None = None, *, promised_bytes: int = 0) -> Loaded:
    """Open a GGUF file or a Hugging Face folder, fit it into memory, of which promised_bytes are others', and fill it.

    Raises ModelLoadError for a checkpoint that cannot be used, ConfigError for settings that cannot be had.
    """
    config = structs.replace(config, device=device_of(config).type)
    config.validate()
    check_native()
    _keep_large_memory_apart()
    checkpoint = open_checkpoint(path)
    if checkpoint.kind == "gguf":
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
        read_template = partial(ChatTemplate.from_gguf, checkpoint.metadata, tokenizer)
    else:
        tokenizer = Tokenizer.from_folder(checkpoint.path)
        read_template = partial(ChatTemplate.from_folder, checkpoint.path, tokenizer)
    template = None
    try:
        template = read_template()
    except TemplateError as error:
        log.warning("%s can complete texts but not chat: %s", path, error)
    give_back_freed_memory()
    try:
        runner = ModelRunner(config, checkpoint, progress, n_vocab=tokenizer.vocab_size, promised_bytes=promised_bytes)
    except KernelMissing as error:
        raise ModelLoadError(f"{path}: {error.message}", error.hint) from error
    kv_kind = root_key(runner.kv_extras | _origin(path)).hex()[:32]
    info = ModelInfo(
        name=path.stem if path.is_file() else path.name,
        path=str(path),
        family=runner.model_config.family,
        quantization=_main_format(runner),
        dtype=str(runner.dtype).removeprefix("torch."),
        max_model_len=runner.max_model_len,
        n_vocab=min(tokenizer.vocab_size, runner.model_config.vocab_size),
        n_params=runner.n_params,
        weights_bytes=runner.weights_bytes,
        kv_bytes=runner.kv_bytes,
        n_blocks=sum(group.n_blocks for group in runner.kv_groups),
        block_size=runner.block_size,
        kv_groups=runner.kv_groups,
        digest=runner.digest,
        kv_kind=kv_kind,
        memory_note=runner.budget.why,
        needed_bytes=runner.budget.needs.total,
    )
    config = runner.config
    if runner.budget.is_short:
        log.warning("Memory is short: %s. A window of %d tokens", info.memory_note, info.max_model_len)
    elif info.max_model_len < min(USEFUL_WINDOW, runner.model_config.max_position, config.max_model_len or USEFUL_WINDOW):
        log.warning("The window has only %d tokens: %s", info.max_model_len, info.memory_note)
    tiers = [tier for tier in (_shared_tier(kv_kind, config, runner), _disk_tier(kv_kind, config, runner)) if tier is not None]
    connector = Connectors(*tiers) if len(tiers) > 1 else tiers[0] if tiers else None
    return Loaded(lambda emit: EngineCore(config, runner, tokenizer, emit, connector), tokenizer, template, info)


def _origin(path: Path) -> dict[str, str]:
    """What KV elsewhere depends on besides: the files as they are (weights' digests are of samples), and what computes."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    module = getattr(launch.native, "__file__", None)
    return {
        "files": repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]),
        "module": hashlib.sha256(Path(module).read_bytes()).hexdigest() if module else "",
        "torch": torch.__version__,
    }


def _shared_tier(kind: str, config: EngineConfig, runner: ModelRunner) -> SharedTier | None:
    """What hands KV over to another process, or takes it, where that is this one's role. Raises ConfigError."""
    if config.role == "both":
        return None
    if runner.host is None:
        raise ConfigError(
            f"role is {config.role}, but no host memory is left for what is handed over.", "Set --swap-space, 256MiB for example."
        )
    folder = SharedFolder(Path(config.kv_shared_folder) if config.kv_shared_folder else None)
    space = config.kv_shared_space
    if space is None:
        space = min(SHARED_MOST, shutil.disk_usage(folder.path).free // SHARED_SHARE)
    if space < (least := 2 * max(group.block_bytes for group in runner.kv_groups)):
        folder.release()
        raise ConfigError(
            f"kv_shared_space is {space} bytes, in which next to no KV can be handed over.",
            f"Set --kv-shared-space to {least} or more, better to what a prompt takes; free space in {folder.path} is the most.",
        )
    store = SharedStore(folder.kind(kind[:KIND_DIGITS]), space, config.kv_lease)
    return SharedTier(folder, store, runner.host.buffers, hands_over=config.role == "prefill")


def _disk_tier(kind: str, config: EngineConfig, runner: ModelRunner) -> DiskTier | None:
    """What keeps the prefix cache on disk, where there is a folder for it. What a prefill server computes, others keep."""
    if config.kv_disk_folder is None or config.kv_disk_space == 0 or not config.enable_prefix_caching or config.role == "prefill":
        return None
    if runner.host is None:
        log.warning("The KV cache is not kept on disk: no host memory is left for what is on its way. Set --swap-space.")
        return None
    folder = Path(config.kv_disk_folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        space = config.kv_disk_space
        if space is None:
            space = min(DISK_MOST, shutil.disk_usage(folder).free // DISK_SHARE)
        if space < (least := max(group.block_bytes for group in runner.kv_groups)):
            log.warning("No KV is kept on disk: %d bytes hold no block. Set --kv-disk-space to %d or more.", space, least)
        store = DiskStore(folder, kind, space)
    except OSError as error:
        log.warning("The KV cache is not kept on disk: %s cannot be used: %s", folder, error)
        return None
    return DiskTier(store, runner.host.buffers)
