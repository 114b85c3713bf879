"""The sound models that the mutations begin with: small, but with everything that is read of a file.

A seed is a GGUF file or a folder. Another kind of checkpoint joins with one function in SEEDS.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.engine.models import converted_latent, converted_sparse, eight_bits, sparse, test_families, tiny
from tests.engine.weights.fuzz import gguf_tree
from tests.engine.weights.gguf_writer import Parts, entry, tensor_info, typed

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
    "BF16": 30,
}
_ALPHABET = pre_tokenizers.ByteLevel.alphabet()
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("o", "r")]
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SIZES = {"vocab_size": 272, "max_position_embeddings": 128}


def _vocabulary() -> list[str]:
    return [*CONTROLS, *sorted(_ALPHABET), *("".join(merge) for merge in MERGES)]


def _bpe() -> list[bytes]:
    tokens = _vocabulary()
    return [
        entry("tokenizer.ggml.model", typed("str", "gpt2")),
        entry("tokenizer.ggml.pre", typed("str", "qwen2")),
        entry("tokenizer.ggml.tokens", typed("[str]", tokens)),
        entry("tokenizer.ggml.token_type", typed("[i32]", [3] * len(CONTROLS) + [1] * (len(tokens) - len(CONTROLS)))),
        entry("tokenizer.ggml.merges", typed("[str]", [" ".join(merge) for merge in MERGES])),
        entry("tokenizer.ggml.bos_token_id", typed("u32", 0)),
        entry("tokenizer.ggml.eos_token_id", typed("u32", 2)),
        entry("tokenizer.ggml.add_bos_token", typed("bool", True)),
        entry("tokenizer.chat_template", typed("str", TEMPLATE)),
    ]


def _sentencepiece() -> list[bytes]:
    words = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *"helowrd",
        "he",
        "ll",
        "hell",
        "hello",
        "▁w",
    ]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(words) - 259)]
    scores = [0.0] * 259 + [-float(i) for i in range(len(words) - 259)]
    return [
        entry("tokenizer.ggml.model", typed("str", "llama")),
        entry("tokenizer.ggml.tokens", typed("[str]", words)),
        entry("tokenizer.ggml.scores", typed("[f32]", scores)),
        entry("tokenizer.ggml.token_type", typed("[i32]", types)),
        entry("tokenizer.ggml.bos_token_id", typed("u32", 1)),
        entry("tokenizer.ggml.eos_token_id", typed("u32", 2)),
        entry("tokenizer.ggml.unknown_token_id", typed("u32", 0)),
        entry("tokenizer.ggml.add_bos_token", typed("bool", True)),
        entry("tokenizer.ggml.add_space_prefix", typed("bool", True)),
    ]


def _values(qtype: str, n: int, rng: random.Random) -> bytes:
    """Small numbers of a dense type; blocks whose scales are 0.01, or 0 where a scale lies among other bits."""
    if qtype == "F32":
        return struct.pack(f"<{n}f", *(rng.uniform(-0.1, 0.1) for _ in range(n)))
    if qtype == "F16":
        return struct.pack(f"<{n}e", *(rng.uniform(-0.1, 0.1) for _ in range(n)))
    if qtype == "BF16":
        return b"".join(struct.pack("<f", rng.uniform(-0.1, 0.1))[2:] for _ in range(n))
    n_scales, n_bytes, per = {
        "Q4_0": (1, 18, 32), "Q4_1": (2, 20, 32), "Q5_0": (1, 22, 32), "Q5_1": (2, 24, 32), "Q8_0": (1, 34, 32),
        "Q4_K": (2, 144, 256), "Q5_K": (2, 176, 256), "Q6_K": (0, 210, 256),
    }[qtype]  # fmt: skip
    scales = struct.pack("<e", 0.01) * n_scales
    rest = n_bytes - 2 * n_scales - (2 if qtype == "Q6_K" else 0)
    return b"".join(scales + rng.randbytes(rest) + bytes(2 if qtype == "Q6_K" else 0) for _ in range(n // per))


def _gguf(
    file: Path,
    family: str,
    size: int,
    tokenizer: list[bytes],
    n_vocab: int,
    qtypes: list[str],
    more: dict[str, tuple[str, object]],
) -> Path:
    """A model of two layers, four heads and two KV heads of 32 dims, its matrices of these types in turn."""
    rng = random.Random(family)
    parts = Parts(entries=[entry("general.architecture", typed("str", family)), entry("general.name", typed("str", "seed"))])
    numbers = {"block_count": 2, "context_length": 128, "embedding_length": size, "feed_forward_length": 256}
    numbers |= {"attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32}
    parts.entries += [entry(f"{family}.{name}", typed("u32", value)) for name, value in numbers.items()]
    parts.entries += [entry(f"{family}.attention.layer_norm_rms_epsilon", typed("f32", 1e-5))]
    parts.entries += [entry(f"{family}.{name}", typed(*value)) for name, value in more.items()]
    parts.entries += tokenizer
    matrices = [("attn_q", size, 128), ("attn_k", size, 64), ("attn_v", size, 64), ("attn_output", 128, size)]
    matrices += [("ffn_gate", size, 256), ("ffn_up", size, 256), ("ffn_down", 256, size)]
    vectors = [("attn_norm", size), ("ffn_norm", size)]
    if family == "gemma3":
        vectors += [("post_attention_norm", size), ("post_ffw_norm", size), ("attn_q_norm", 32), ("attn_k_norm", 32)]
    tensors = [("token_embd.weight", (size, n_vocab), "Q8_0"), ("output_norm.weight", (size,), "F32")]
    for layer in range(2):
        tensors += [
            (f"blk.{layer}.{name}.weight", (n_in, n_out), qtype if n_in % 256 == 0 or "_K" not in qtype else "Q8_0")
            for (name, n_in, n_out), qtype in zip(matrices, qtypes[layer:] + qtypes[:layer], strict=True)
        ]
        tensors += [(f"blk.{layer}.{name}.weight", (n,), "F32") for name, n in vectors]
        if family == "qwen2":
            tensors += [(f"blk.{layer}.attn_{part}.bias", (n,), "F32") for part, n in (("q", 128), ("k", 64), ("v", 64))]
    for name, dims, qtype in tensors:
        parts.infos.append(tensor_info(name, dims, _TYPES[qtype], len(parts.data)))
        raw = _values(qtype, dims[0] * (dims[1] if len(dims) > 1 else 1), rng)
        parts.data += raw + bytes(-len(raw) % 32)
    file.write_bytes(parts.bytes())
    return file


def llama_gguf(folder: Path) -> Path:
    more = {"rope.dimension_count": ("u32", 32), "rope.freq_base": ("f32", 10000.0)}
    qtypes = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"]
    return _gguf(folder / "llama.gguf", "llama", 64, _sentencepiece(), 272, qtypes, more)


def qwen2_gguf(folder: Path) -> Path:
    more = {
        "rope.scaling.type": ("str", "yarn"),
        "rope.scaling.factor": ("f32", 2.0),
        "rope.scaling.original_context_length": ("u32", 64),
    }
    qtypes = ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "Q4_K", "F32", "Q6_K"]
    return _gguf(folder / "qwen2.gguf", "qwen2", 256, _bpe(), 265, qtypes, more)


def gemma3_gguf(folder: Path) -> Path:
    more = {
        "attention.sliding_window": ("u32", 32),
        "attention.sliding_window_pattern": ("[bool]", [True, False]),
        "final_logit_softcapping": ("f32", 30.0),
    }
    qtypes = ["Q8_0", "F16", "Q4_0", "Q8_0", "Q5_0", "F32", "Q8_0"]
    return _gguf(folder / "gemma3.gguf", "gemma3", 64, _bpe(), 265, qtypes, more)


def _converted(folder: Path, name: str, family: str, to_gguf: Callable[..., None], settings: dict[str, object]) -> Path:
    """What a converter makes of a tiny model, with a tokenizer."""
    config = tiny.saved(folder / f"of-{name}", family, **_SIZES, **settings).config
    file = folder / f"{name}.gguf"
    to_gguf(folder / f"of-{name}", config, file)
    tree = gguf_tree.read(file.read_bytes())
    tree.entries += gguf_tree.read(Parts(entries=_bpe()).bytes()).entries
    file.write_bytes(gguf_tree.write(tree)[0])
    return file


def gpt_oss_gguf(folder: Path) -> Path:
    return _converted(folder, "gpt_oss", "gpt_oss", converted_sparse.to_gguf, sparse.MODELS["gpt_oss"][1])


def lfm2_gguf(folder: Path) -> Path:
    return _converted(folder, "lfm2", "lfm2_moe", converted_sparse.to_gguf, sparse.MODELS["lfm2_moe"][1])


def deepseek_gguf(folder: Path) -> Path:
    settings = {**test_families.LATENT, **test_families.EXPERTS, "q_lora_rank": 24}
    return _converted(folder, "deepseek", "deepseek_v3", converted_latent.to_gguf, settings)


def gemma4_gguf(folder: Path) -> Path:
    family, settings = test_families.MODELS["gemma4, an embedding for each layer, shared keys"]
    return _converted(folder, "gemma4", family, converted_latent.to_gguf, settings)


def _tokenizer_files(folder: Path) -> None:
    ids = {token: i for i, token in enumerate(_vocabulary())}
    core = Tokenizer(models.BPE(vocab=ids, merges=MERGES))
    core.pre_tokenizer, core.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True) for name in CONTROLS])
    core.save(str(folder / "tokenizer.json"))
    named = {"bos_token": CONTROLS[0], "eos_token": CONTROLS[2], "chat_template": TEMPLATE, "add_bos_token": False}
    added = {str(i): {"content": name, "special": True} for i, name in enumerate(CONTROLS)}
    (folder / "tokenizer_config.json").write_text(json.dumps(named | {"added_tokens_decoder": added}), "utf-8")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}), "utf-8")


def _folder(folder: Path, family: str, *, shard: str = "1GB", **settings: object) -> Path:
    path = folder / family
    model = tiny.saved(path, family, **{**_SIZES, **settings})
    if shard != "1GB":
        (path / "model.safetensors").unlink()
        model.save_pretrained(path, max_shard_size=shard)
    _tokenizer_files(path)
    return path


def llama_folder(folder: Path) -> Path:
    scaling = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 64, "rope_theta": 10_000.0}
    return _folder(folder, "llama", shard="200KB", rope_parameters=scaling, max_position_embeddings=256)


def gemma3_folder(folder: Path) -> Path:
    return _folder(folder, "gemma3_text", head_dim=16, sliding_window=24, query_pre_attn_scalar=16)


def qwen3_5_folder(folder: Path) -> Path:
    sizes = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
    return _folder(folder, "qwen3_5_text", head_dim=32, num_hidden_layers=4, **sizes)


def lfm2_folder(folder: Path) -> Path:
    return _folder(folder, "lfm2", **sparse.MODELS["lfm2"][1], full_attn_idxs=[1, 4], block_ffn_dim_multiplier=1.0)


def exaone4_folder(folder: Path) -> Path:
    path = _folder(folder, "exaone4", sliding_window=24, sliding_window_pattern=3)
    values = json.loads((path / "config.json").read_text("utf-8"))
    (path / "config.json").write_text(json.dumps(values | {"sliding_window_pattern": "LLG"}), "utf-8")  # as published
    return path


def fp8_folder(folder: Path) -> Path:
    eight_bits.saved(path := folder / "fp8", "qwen3", head_dim=32, **_SIZES)
    _tokenizer_files(path)
    return path


SEEDS: dict[str, Callable[[Path], Path]] = {
    "llama-gguf": llama_gguf,
    "qwen2-gguf": qwen2_gguf,
    "gemma3-gguf": gemma3_gguf,
    "gpt_oss-gguf": gpt_oss_gguf,
    "lfm2-gguf": lfm2_gguf,
    "deepseek-gguf": deepseek_gguf,
    "gemma4-gguf": gemma4_gguf,
    "llama-folder": llama_folder,
    "gemma3-folder": gemma3_folder,
    "qwen3_5-folder": qwen3_5_folder,
    "lfm2-folder": lfm2_folder,
    "exaone4-folder": exaone4_folder,
    "fp8-folder": fp8_folder,
}
"""Name -> makes the file or folder in the folder it is given."""
