"""What a repository offers: which of its files make a model, and which of them suits this machine."""

from __future__ import annotations

import pytest

from app.catalog import advice, choices, hub, quality
from app.catalog.advice import Row
from app.catalog.choices import LOADED, Choice
from app.catalog.preview import Preview
from engine.config import EngineConfig
from engine.errors import ModelLoadError
from engine.weights.loader import open_checkpoint
from tests import models

GIB = 1 << 30


def sizes(*names: str) -> dict[str, int]:
    return dict.fromkeys(names, 100)


def test_hub_ids() -> None:
    assert hub.parse_id("Qwen/Qwen3-0.6B-GGUF") == ("Qwen/Qwen3-0.6B-GGUF", None)
    assert hub.parse_id("Qwen/Qwen3-0.6B-GGUF:q8_0") == ("Qwen/Qwen3-0.6B-GGUF", "q8_0")
    assert hub.parse_id("qwen3-0.6b") is None
    assert hub.parse_id("a/b/c") is None
    assert hub.parse_id("../etc/passwd") is hub.parse_id("../etc") is hub.parse_id("a/..") is None


def test_each_quantisation_is_a_choice() -> None:
    found = choices.choices("o/r", {"m-Q8_0.gguf": 80, "m-Q4_K_M.gguf": 45, "m-Q1_0.gguf": 20, "README.md": 1})
    assert [(c.quant, c.n_bytes, c.is_loaded) for c in found] == [("Q1_0", 20, False), ("Q4_K_M", 45, True), ("Q8_0", 80, True)]
    assert choices.of_quant(found, "q8_0").files == ("m-Q8_0.gguf",) and found[1].name == "o/r:Q4_K_M"


@pytest.mark.parametrize("projector", ["mmproj-m-F16.gguf", "m-mmproj-F16.gguf", "MMPROJ-F16.gguf"])
def test_a_vision_projector_is_never_taken_for_the_model(projector: str) -> None:
    found = choices.choices("o/r", sizes("A-F16.gguf", projector, "Z-Q8_0.gguf"))
    assert choices.of_quant(found, "F16").files == ("A-F16.gguf",) and len(found) == 2


def test_a_split_file_is_one_choice_of_all_its_parts() -> None:
    parts = [f"m-Q4_0-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    (choice,) = choices.choices("o/r", sizes(*reversed(parts)))
    assert (choice.files, choice.n_bytes, choice.quant) == (tuple(parts), 300, "Q4_0")
    with pytest.raises(ModelLoadError, match="neither a whole GGUF"):
        choices.choices("o/r", sizes(*parts[:2]))


def test_a_folder_may_tell_the_quantisation() -> None:
    found = choices.choices("o/r", sizes("Q8_0/m-00001-of-00002.gguf", "Q8_0/m-00002-of-00002.gguf", "Q4_0/m.gguf"))
    assert {choice.quant: len(choice.files) for choice in found} == {"Q8_0": 2, "Q4_0": 1}


def test_dense_repositories_give_what_the_loader_needs_and_nothing_that_runs() -> None:
    files = sizes("config.json", "tokenizer.json", "model.safetensors", "modeling_x.py", "pytorch_model.bin", "onnx/model.onnx")
    (choice,) = choices.choices("o/r", files)
    assert set(choice.files) == {"config.json", "tokenizer.json", "model.safetensors"} and choice.n_bytes == 300


@pytest.mark.parametrize(
    ("files", "quant", "said"),
    [
        (sizes("m-Q8_0.gguf"), "Q4_0", "has no Q4_0.*\n?.*It has Q8_0"),
        (sizes("m-Q1_0.gguf", "m-Q4_0_4_4.gguf"), None, "does not load: Q1_0, Q4_0_4_4"),
        (sizes("m-Q1_0.gguf"), "Q1_0", "does not load: Q1_0"),
        (sizes("a-Q4_0.gguf", "b-Q4_0.gguf"), "Q4_0", "2 files of Q4_0: a-Q4_0.gguf, b-Q4_0.gguf"),
        (sizes("mmproj-m-F16.gguf"), None, "neither a whole GGUF"),
        (sizes("config.json", "model.safetensors"), None, "no tokenizer.json"),
        (sizes("pytorch_model.bin", "config.json"), None, "neither a whole GGUF"),
    ],
)
def test_what_cannot_be_loaded_is_refused(files: dict[str, int], quant: str | None, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        found = choices.choices("o/r", files)
        choices.of_quant(found, quant) if quant else choices.require_loaded(found)


def row(quant: str, size: int, *, window: int = 32_768, tok_s: float | None = 20.0) -> Row:
    return Row(Choice("o/r", (f"m-{quant}.gguf",), size, quant), None, window, "" if window else "does not fit", tok_s)


def picked(*rows: Row) -> str:
    found = advice.best(rows)
    return found.choice.quant if found else ""


def test_the_best_is_the_finest_that_fits_and_is_not_slower_than_one_reads() -> None:
    q4, q6, q8, f16 = row("Q4_K_M", 45), row("Q6_K", 62), row("Q8_0", 80), row("F16", 150)
    assert picked(q4, q6, q8, f16) == "Q8_0", "16 bits are no better to notice, and twice as large"
    assert picked(q4, q6, row("Q8_0", 80, tok_s=7.0)) == "Q6_K"
    assert picked(q4, row("Q6_K", 62, window=0)) == "Q4_K_M"
    assert picked(q4, row("Q6_K", 62, window=2048)) == "Q4_K_M", "a window in which no conversation has room"
    assert picked(row("Q2_K", 30, tok_s=6.0), row("Q4_K_M", 45, tok_s=4.0), row("Q8_0", 80, tok_s=2.0)) == "Q4_K_M"
    assert picked(row("Q4_K_M", 45, tok_s=None), row("Q8_0", 80, tok_s=None)) == "Q8_0"
    assert picked(row("Q4_K_M", 45, window=512), row("Q8_0", 80, window=256)) == "Q4_K_M"
    assert picked(row("Q4_K_M", 45, window=0)) == ""


def test_a_row_has_the_window_that_a_load_would_give_and_the_speed_that_memory_allows() -> None:
    checkpoint = open_checkpoint(models.smollm2())
    facts = Preview(checkpoint.config, 134_515_008, True)
    found = [Choice("o/r", ("m-Q4_1.gguf",), 98_000_000, "Q4_1"), Choice("o/r", ("m-Q1_0.gguf",), 40_000_000, "Q1_0")]
    roomy, unknown = advice.rows(found, facts, lambda _: EngineConfig(), read_bytes_s=19.6e9, free=8 * GIB)
    assert (roomy.window, roomy.most_tok_s, round(roomy.bits or 0, 1)) == (8192, 200.0, 5.8)
    assert (unknown.window, unknown.why_not) == (0, "not loaded yet")
    (tight,) = advice.rows(found[:1], facts, lambda _: EngineConfig(), read_bytes_s=None, free=500 << 20)
    assert 16 < tight.window < 8192 and tight.most_tok_s is None
    (none,) = advice.rows(found[:1], facts, lambda _: EngineConfig(), read_bytes_s=None, free=100 << 20)
    assert (none.window, none.why_not) == (0, "does not fit into memory")


def test_quality_falls_with_the_bits_and_is_said_in_words() -> None:
    order = ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0", "Q3_K_M", "Q3_K_S", "Q2_K"]
    losses = [quality.loss(quant) for quant in order]
    assert losses == sorted(losses) and quality.words("Q4_K_M") == "+0.17 ppl, a little less"
    assert quality.words("Q8_0").endswith("as good as 16 bits") and quality.words("XQ9") == "not known"
    unpublished = {quant for quant in LOADED if quality.loss(quant) is None}
    assert unpublished == {quant for quant in LOADED if quant.startswith(("IQ", "TQ", "MXFP"))}
