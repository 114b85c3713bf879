"""What a quantisation costs in quality, roughly: bits of a weight, and how much worse a text is predicted.

The figures of GGUF types are those that llama.cpp's llama-quantize prints (tools/quantize/quantize.cpp): the perplexity of
Llama 3 8B on WikiText above that of its 16-bit weights, which is about 6.2. Smaller models lose more, larger ones less.
"""

from __future__ import annotations

PERPLEXITY_LOSS = {
    "Q2_K": 3.52, "Q2_K_S": 3.18, "Q3_K_S": 1.63, "Q3_K_M": 0.657, "Q3_K": 0.657, "Q3_K_L": 0.556, "Q4_0": 0.469, "Q4_1": 0.451,
    "Q4_K_S": 0.269, "Q4_K_M": 0.175, "Q4_K": 0.175, "Q5_0": 0.132, "Q5_1": 0.106, "Q5_K_S": 0.105, "Q5_K_M": 0.057,
    "Q5_K": 0.057, "Q6_K": 0.022, "Q8_0": 0.003, "F16": 0.0, "BF16": 0.0, "F32": 0.0,
}  # fmt: skip
_WORDS = ((0.01, "as good as 16 bits"), (0.07, "hardly less"), (0.2, "a little less"), (0.5, "less"), (1.0, "clearly less"))


def loss(quant: str) -> float | None:
    """Perplexity above that of 16 bits; None where nobody has published it."""
    return PERPLEXITY_LOSS.get(quant)


def words(quant: str) -> str:
    """The loss for a person: '+0.18 ppl, a little less'."""
    found = loss(quant)
    if found is None:
        return "not known"
    return f"+{found:.2f} ppl, {next((text for most, text in _WORDS if found <= most), 'much less')}"
