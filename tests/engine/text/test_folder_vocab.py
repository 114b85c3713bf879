"""Tokenizers and templates from folders in Hugging Face layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.errors import ModelLoadError
from engine.text import tokenizer as text_tokenizer
from engine.text.template import ChatTemplate
from engine.weights.hf.config import from_hf
from engine.weights.safetensors import SafetensorsCheckpoint
from tests import models as real_models
from tests.engine.text import corpus, oracle

OURS = text_tokenizer.Tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A byte-level tokenizer as Llama 3's folder has it: BOS from the post-processor, more ends in generation_config."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*alphabet, "he"])}, merges=[("h", "e")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(["<|begin|>", "<|over|>", "<|eot_id|>"])
    core.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    core.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 257)])
    core.enable_truncation(4)
    core.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<|begin|>", "eos_token": {"content": "<|over|>"}})
    write(tmp_path, "generation_config.json", {"eos_token_id": [258, 200]})
    return tmp_path


def write(folder: Path, name: str, value: object) -> None:
    (folder / name).write_text(json.dumps(value), "utf-8")


def test_a_folder_saved_by_transformers_gives_the_ids_of_its_tokenizer_json():
    path = oracle.folder(real_models.smollm2())
    ours, theirs = OURS.from_folder(path), oracle.theirs(real_models.smollm2())
    for text in corpus.ALL:
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids
        assert ours.decode(ids) == text
    gguf = oracle.ours(real_models.smollm2())
    assert ours.end_ids == gguf.end_ids
    assert ours.special_ids == gguf.special_ids
    assert [ours.token_bytes(i) for i in range(gguf.vocab_size)] == [gguf.token_bytes(i) for i in range(gguf.vocab_size)]


def test_beginning_and_ends_come_from_the_files_beside(folder):
    tokenizer = OURS.from_folder(folder)
    assert tokenizer.encode("hehehehehehe") == [257, *[256] * 6], "never truncated"
    assert tokenizer.encode("<|begin|>he") == [257, 256]
    assert tokenizer.add_bos
    assert tokenizer.end_ids == {200, 258, 259}
    assert tokenizer.special_ids == {257, 258, 259}
    assert tokenizer.decode(tokenizer.encode("a<think>b<|eot_id|>")) == "a<think>b"


def test_the_config_can_switch_bos_off(folder):
    write(folder, "tokenizer_config.json", {"bos_token": "<|begin|>", "add_bos_token": False})
    assert OURS.from_folder(folder).encode("he") == [256]


def test_the_config_can_add_tokens(folder):
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {"261": {"content": "<|new|>", "special": True}}})
    tokenizer = OURS.from_folder(folder)
    assert tokenizer.encode("he<|new|>", add_special=False) == [256, 261]
    assert 261 in tokenizer.special_ids


@pytest.mark.parametrize("key", ["x", "-1", "2.0", "", "9" * 5000])
def test_an_added_token_whose_key_is_no_id_is_named(folder, key):
    write(folder, "tokenizer_config.json", {"added_tokens_decoder": {key: {"content": "<|new|>"}}})
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json: added_tokens_decoder has the key"):
        OURS.from_folder(folder)


@pytest.mark.parametrize("stated", [7, 262, 261_000])
def test_an_added_token_that_would_not_get_its_stated_id_is_refused(folder, stated):
    write(
        folder, "tokenizer_config.json", {"added_tokens_decoder": {str(stated): {"content": "<|new|>"}}, "eos_token": "<|new|>"}
    )
    with pytest.raises(ModelLoadError, match=rf"'<\|new\|>' at id {stated}, but after tokenizer.json it is 261"):
        OURS.from_folder(folder)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_json_nested_without_end_is_a_damaged_file(folder):
    (folder / "tokenizer_config.json").write_text(nested(100_000), "utf-8")
    with pytest.raises(ModelLoadError, match=r"tokenizer_config\.json cannot be read"):
        OURS.from_folder(folder)
    (folder / "config.json").write_text(nested(100_000), "utf-8")
    with pytest.raises(ModelLoadError, match=r"config\.json: the file cannot be read"):
        SafetensorsCheckpoint(folder)


def test_a_text_half_is_no_model_with_images_again():
    config: dict = {"model_type": "gemma3_text"}
    for _ in range(3000):
        config = {"model_type": "gemma3", "text_config": config}
    with pytest.raises(ModelLoadError, match="text_config"):
        from_hf(config)


def test_a_sentencepiece_folder_keeps_text_and_bytes(tmp_path):
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    vocab = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *bytes_, "▁", "a", "▁a"])}
    core = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "a")], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True})
    tokenizer = OURS.from_folder(tmp_path)
    for text in ("a a", "🙂 a", " a"):
        assert tokenizer.encode(text)[0] == 1
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.end_ids == {2}
    assert tokenizer.token_bytes(vocab["<0xE2>"]) == b"\xe2"


def test_templates_are_found_where_folders_have_them(folder):
    tokenizer = OURS.from_folder(folder)
    assert ChatTemplate.from_folder(folder, tokenizer).is_default
    write(folder, "tokenizer_config.json", {"chat_template": "config {{ bos_token }}", "bos_token": "<|begin|>"})
    tokenizer = OURS.from_folder(folder)
    said = [{"role": "user", "content": "hi"}]
    assert ChatTemplate.from_folder(folder, tokenizer).render(said) == "config <|begin|>"
    named = [{"name": "rag", "template": "rag"}, {"name": "default", "template": "named"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert ChatTemplate.from_folder(folder, tokenizer).render(said) == "named"
    (folder / "chat_template.jinja").write_text("file", "utf-8")
    assert ChatTemplate.from_folder(folder, tokenizer).render(said) == "file"


def test_a_folder_without_tokenizer_json_says_so(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json"):
        OURS.from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_damaged_file_is_named(folder, name):
    (folder / name).write_text("{", "utf-8")
    with pytest.raises(ModelLoadError, match=name):
        OURS.from_folder(folder)


def test_a_decoder_without_bytes_is_refused(folder):
    core = Tokenizer.from_file(str(folder / "tokenizer.json"))
    core.decoder = decoders.WordPiece()
    core.save(str(folder / "tokenizer.json"))
    with pytest.raises(ModelLoadError, match="WordPiece"):
        OURS.from_folder(folder)
