"""GGUF files that the gguf package of llama.cpp writes."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

SIZE, N_HEADS, N_KV_HEADS, N_VOCAB, N_LAYERS = 64, 4, 2, 40, 3


def tensors() -> dict[str, torch.Tensor]:
    """Of a llama with random values, the same each time."""
    generator = torch.Generator().manual_seed(9)
    shapes = {"token_embd": (N_VOCAB, SIZE), "output_norm": (SIZE,), "output": (N_VOCAB, SIZE)}
    for i in range(N_LAYERS):
        kv = SIZE // N_HEADS * N_KV_HEADS
        matrices = {"attn_q": (SIZE, SIZE), "attn_k": (kv, SIZE), "attn_v": (kv, SIZE), "attn_output": (SIZE, SIZE)}
        matrices |= {
            "ffn_gate": (96, SIZE),
            "ffn_up": (96, SIZE),
            "ffn_down": (SIZE, 96),
            "attn_norm": (SIZE,),
            "ffn_norm": (SIZE,),
        }
        shapes |= {f"blk.{i}.{name}": shape for name, shape in matrices.items()}
    return {f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def write_llama(path: Path, *, type_name: str = "F32", split_max_tensors: int = 0) -> list[Path]:
    """The files, in order: `path`, or with split_max_tensors as many parts as that takes, named as llama.cpp names them."""
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(96)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(N_VOCAB)
    writer.add_token_list([f"t{i}" for i in range(N_VOCAB)])
    for name, values in tensors().items():
        kind = gguf.GGMLQuantizationType[type_name if values.dim() == 2 else "F32"]
        data = gguf.quants.quantize(values.numpy(), kind)
        writer.add_tensor(name, data, raw_dtype=None if data.dtype in (np.float32, np.float16) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(path.parent.glob(f"{path.stem}*.gguf"))
