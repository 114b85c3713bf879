"""The sizes of a few models, on which operators are measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kernels.ops import BLOCKS, ROW_UNIT, SCALED


@dataclass(frozen=True, slots=True)
class Shapes:
    """What of a model decides how long its operators take."""

    name: str
    hidden: int
    mlp: int
    n_heads: int
    n_kv_heads: int
    head_size: int
    n_vocab: int
    n_layers: int
    qtypes: tuple[str, ...]
    """Of the file that people download."""
    weight_bytes: int
    """Of that file: what a decode step reads, and so how far the weights of one layer have gone when it comes round again."""

    def products(self) -> Iterator[tuple[str, str, tuple[int, ...], int]]:
        """(operator, name, out of each matrix, in) of the products of a layer, and of the head."""
        q, kv = self.n_heads * self.head_size, self.n_kv_heads * self.head_size
        yield "quant_linears", "q, k, v", (q, kv, kv), self.hidden
        yield "quant_linear", "o", (self.hidden,), q
        yield "gated_linear", "gate, up", (self.mlp, self.mlp), self.hidden
        yield "quant_linear", "down", (self.hidden,), self.mlp
        yield "quant_linear", "head", (self.n_vocab,), self.hidden

    def fits(self, qtype: str, n_in: int) -> bool:
        """Whether rows of n_in values are whole blocks, or groups, of a weight type."""
        n_values = BLOCKS[qtype][0] if qtype in BLOCKS else ROW_UNIT if qtype in SCALED else 1
        return n_in % n_values == 0


PRESETS = {
    shapes.name: shapes
    for shapes in (
        Shapes("smollm2-135m", 576, 1536, 9, 3, 64, 49152, 30, ("Q4_1",), 98_000_000),
        Shapes("qwen2.5-0.5b", 896, 4864, 14, 2, 64, 151936, 24, ("Q5_0", "Q8_0", "Q4_K", "Q6_K"), 400_000_000),
        Shapes("qwen2.5-1.5b", 1536, 8960, 12, 2, 128, 151936, 28, ("Q4_K", "Q6_K"), 990_000_000),
    )
}
