"""EngineConfig: every knob of the engine, named as vLLM names it, described in users' words.

The descriptions are the single source of the command line's help, the TOML file's validation, the environment
variables and the documentation.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from engine.errors import ConfigError

KVCacheDtype = Literal["auto", "float32", "float16", "bfloat16", "fp8_e4m3", "int8"]
PreemptionMode = Literal["auto", "swap", "recompute"]
Quantization = Literal["auto", "none", "int8", "int4", "fp8", "nf4", "bitsandbytes"]
Role = Literal["both", "prefill", "decode"]


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """How the engine loads and runs one model."""

    max_model_len: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(description="Window in tokens, prompt and answer together. Default: the model's own, or what fits in memory."),
    ] = None
    max_num_seqs: Annotated[
        int,
        Meta(
            ge=1, le=4096, description="Most answers computed together in one step. The default is lowered where memory is short."
        ),
    ] = 64
    max_num_batched_tokens: Annotated[
        Annotated[int, Meta(ge=16)] | None,
        Meta(
            description="Token budget of one step, shared by prefill chunks and decodes; a stop takes effect between steps. "
            "Default: 2048 on a GPU, 128 on a CPU, less where memory is short."
        ),
    ] = None
    enable_chunked_prefill: Annotated[
        bool,
        Meta(description="Cut long prompts into chunks that run beside decodes. Off: a prompt runs whole, in one step."),
    ] = True
    block_size: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | Literal["auto"],
        Meta(
            description="Tokens of one KV cache block, a power of two up to 256: small ones leave less room empty and more of a "
            "prompt to be found again, large ones take less bookkeeping. auto: 16 for windows up to 8192 tokens, 32 up to 32768, "
            "64 for longer ones."
        ),
    ] = "auto"
    gpu_memory_utilization: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Share of free memory that weights, KV cache and steps may take. Default: 0.9 on a GPU, 0.5 on a CPU, "
            "there 0.9 for a model that would not fit otherwise."
        ),
    ] = None
    kv_cache_memory: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Size of the KV cache. Default: fitted to free memory.", extra={"unit": "bytes"}),
    ] = None
    kv_cache_dtype: Annotated[
        KVCacheDtype,
        Meta(
            description="Number format of the KV cache. auto: float16 for float32 activations on a CPU unless kernel_precision "
            "is exact, else that of the activations. int8: with a scale for each token and head, in about half of float16's "
            "memory. fp8_e4m3: in half of it, with four significant bits and 448 at most, which models with large keys do not "
            "bear (pagewell bench perplexity tells)."
        ),
    ] = "auto"
    swap_space: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Host memory for blocks that leave the KV cache, so that they need not be computed again. Default: an "
            "eighth of free memory, at most 4GiB beside a GPU and 1GiB on a CPU.",
            extra={"unit": "bytes"},
        ),
    ] = None
    preemption_mode: Annotated[
        PreemptionMode,
        Meta(
            description="What becomes of an answer that gives way when the KV cache is full. swap: its blocks go to host memory. "
            "recompute: they are computed again. auto: what takes less time by the speeds measured so far."
        ),
    ] = "auto"
    kv_disk_space: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Disk for prefixes of the KV cache, of all models together, so that they are known after a restart. 0: "
            "none. Default: a tenth of what is free there, at most 8GiB.",
            extra={"unit": "bytes"},
        ),
    ] = None
    kv_disk_folder: Annotated[
        str | None,
        Meta(
            description="Where they are kept. Default: the cache folder for `serve`, nowhere for the Python API. A prefill "
            "server keeps none."
        ),
    ] = None
    enable_prefix_caching: Annotated[bool, Meta(description="Reuse the KV of prompts that begin alike.")] = True
    enforce_eager: Annotated[
        bool, Meta(description="Call the operators of a step one by one instead of replaying a recorded step; for comparisons.")
    ] = False
    device: Annotated[
        Literal["auto", "cpu", "cuda"], Meta(description="Where the model runs. auto: a GPU if torch sees one.")
    ] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "float16", "bfloat16"],
        Meta(description="Number format of activations. auto: float32 on a CPU."),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Meta(
            description="auto: weights stay in memory as the file has them. none: dequantised at load, which takes more memory. "
            "Others quantise a dense model at load, to about so many bits for each weight: int8, fp8: 8; int4, nf4: 4.6. "
            "bitsandbytes: the same as nf4, whose integers and scales are those of that library."
        ),
    ] = "auto"
    weights_disk_space: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description="Disk for weights that quantization made, of all models together, so that the next load need not. 0: "
            "none. Default: a quarter of what is free there or taken by them.",
            extra={"unit": "bytes"},
        ),
    ] = None
    weights_disk_folder: Annotated[
        str | None,
        Meta(
            description="Where they are kept, in a subfolder quantized-on-load; nothing else there is touched. Default: the "
            "cache folder for `serve`, nowhere for the Python API."
        ),
    ] = None
    kernel_precision: Annotated[
        Literal["fast", "exact"],
        Meta(
            description="fast: products quantise activations to 8 bits, where the processor is faster so. exact: they are taken "
            "in float32, and so is a KV cache whose kv_cache_dtype is auto; for comparisons."
        ),
    ] = "fast"
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        Meta(description="Threads that compute on a CPU. Default: one for each physical core that the process may use."),
    ] = None
    seed: Annotated[int, Meta(ge=0, description="Seed from which requests without a seed of their own draw theirs.")] = 0
    max_waiting: Annotated[
        int, Meta(ge=1, description="Most requests beyond max_num_seqs; one more is answered 503 with a time to come back.")
    ] = 1024
    role: Annotated[
        Role,
        Meta(
            description="Part that this server takes. both: all of it. decode: it answers, and long prompts are computed by a "
            "prefill server of the same model and settings on this machine, while one runs. prefill: it is that server."
        ),
    ] = "both"
    kv_shared_space: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(
            description="Shared memory for the KV that a prefill server hands over. Default: a quarter of what is free there, at "
            "most 2GiB.",
            extra={"unit": "bytes"},
        ),
    ] = None
    kv_shared_folder: Annotated[
        str | None, Meta(description="Where that lies: a folder in memory. Default: /dev/shm, else that for temporary files.")
    ] = None
    kv_lease: Annotated[
        float,
        Meta(gt=0, description="Seconds after which KV that nobody took from shared memory is removed, a dead server's too."),
    ] = 30.0
    tensor_parallel_size: Annotated[int, Meta(ge=1, description="Devices that share one model. Only 1 for now.")] = 1
    debug_checks: Annotated[
        bool, Meta(description="Check every law of the KV cache after each step (slow; for development).")
    ] = False

    @classmethod
    def of(cls, knobs: dict[str, Any]) -> EngineConfig:
        """From named values, checked as every other source of settings is. Raises ConfigError naming the knob."""
        try:
            return msgspec.convert(knobs, cls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"A knob of the engine is wrong: {error}.", "EngineConfig lists them all.") from error

    @property
    def token_budget(self) -> int:
        """max_num_batched_tokens, or the default of `device`, which load_core has resolved by then."""
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        return max(self.max_num_seqs, 2048 if self.device == "cuda" else 128)

    def validate(self) -> None:
        """Raise ConfigError for values that are well-formed but not available, naming the setting and the remedy."""
        if self.tensor_parallel_size != 1:
            raise ConfigError(
                f"tensor_parallel_size is {self.tensor_parallel_size}, but a model runs on one device for now.",
                "Set --tensor-parallel-size 1 or leave it out.",
            )
        if self.preemption_mode == "swap" and self.swap_space == 0:
            raise ConfigError(
                "preemption_mode is swap, but swap_space is 0: there is nowhere to swap to.",
                "Leave one of --preemption-mode and --swap-space out.",
            )
        self._validate_role()
        if self.block_size != "auto" and self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size is {self.block_size}, which is not a power of two.", "Use 16, 32, 64, 128 or auto.")
        if self.token_budget < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({self.token_budget}) is below max_num_seqs ({self.max_num_seqs}): "
                "not every running answer would get a token in each step.",
                "Raise --max-num-batched-tokens or lower --max-num-seqs.",
            )

    def _validate_role(self) -> None:
        if self.role == "both":
            return
        if sys.platform == "win32":
            raise ConfigError(f"role is {self.role}, but KV cannot be handed over on Windows.", "Leave --role out.")
        if not self.enable_prefix_caching:
            raise ConfigError(
                f"role is {self.role}, but the prefix cache is off: what is handed over is found there.",
                "Leave one of --role and --no-enable-prefix-caching out.",
            )
        if self.swap_space == 0:
            raise ConfigError(
                f"role is {self.role}, but swap_space is 0: what is handed over goes through host memory.",
                "Leave one of --role and --swap-space out.",
            )
