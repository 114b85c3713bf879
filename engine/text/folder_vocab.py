"""A vocabulary out of a folder in Hugging Face layout: tokenizer.json and the small JSON files beside it."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from engine.errors import ModelLoadError
from engine.json_file import read_object
from engine.text import pieces
from engine.text.panics import refuses
from engine.text.vocabulary import END_NAMES, Vocabulary, end_ids, fim_tokens

_CHARSMAP = re.compile(rb'"precompiled_charsmap"\s*:\s*"([^"]*)"')
_MAX_DIGITS = 10
"""Of a token id, which is a 32-bit number."""


def vocabulary_from_folder(path: Path) -> Vocabulary:
    """Build the tokenizer of a model folder. Raises ModelLoadError naming the file that is missing or damaged."""
    core = _core(path)
    config_file = path / "tokenizer_config.json"
    config = read_json(config_file)
    _add_missing(core, config, config_file)
    added: dict[int, AddedToken] = core.get_added_tokens_decoder()
    special = {i: token.content for i, token in added.items() if token.special}
    special |= {i: name for name in END_NAMES if (i := core.token_to_id(name)) is not None}
    plain = {i: token.content for i, token in added.items() if i not in special}

    named = {**read_json(path / "special_tokens_map.json"), **config}
    bos, eos = (_id_of_named(core, named.get(key)) for key in ("bos_token", "eos_token"))
    prefix, suffix = _surroundings(core)
    if config.get("add_bos_token") is False and bos is not None:
        prefix = tuple(i for i in prefix if i != bos)
    elif config.get("add_bos_token") is True and bos is not None and bos not in prefix:
        prefix = (bos, *prefix)

    fim = fim_tokens(core.token_to_id)
    return Vocabulary(
        core=core,
        n_tokens=max(core.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1),
        spell=_speller(path, core, plain),
        special=special,
        bos_id=bos,
        eos_id=eos,
        end_ids=end_ids(core.token_to_id, special.__contains__, (eos, *_stated_ends(path)), fim),
        prefix_ids=prefix,
        suffix_ids=suffix,
        drops_first_space=_strips(core),
        fim=fim,
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; {} where there is no such file. Raises ModelLoadError for anything else."""
    return read_object(path) or {}


def _core(path: Path) -> Tokenizer:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelLoadError(
            f"There is no tokenizer.json in {path}.",
            "Use a folder that has one (AutoTokenizer.from_pretrained(...).save_pretrained(...) writes it), or a GGUF file.",
        )
    try:
        raw = file.read_bytes()
        _check_charsmap(raw, file)
        core = Tokenizer.from_buffer(raw)
        core.no_truncation()
        core.no_padding()
        core.encode("a")  # an odd step may fail only when it has something to do
    except BaseException as error:
        if not refuses(error):
            raise
        raise ModelLoadError(f"{file} cannot be read: {error}.", "Download the model again.") from error
    return core


def _check_charsmap(raw: bytes, file: Path) -> None:
    """A precompiled normaliser begins with the size of its first part, for which the package takes memory unseen."""
    for found in _CHARSMAP.finditer(raw):
        charsmap = base64.b64decode(found[1] + b"==")
        if len(charsmap) < 4 or int.from_bytes(charsmap[:4], "little") > len(charsmap):
            raise ModelLoadError(
                f"{file}: precompiled_charsmap does not have the size that it states.", "Download the model again."
            )


def _add_missing(core: Tokenizer, config: Mapping[str, Any], file: Path) -> None:
    """tokenizer_config.json may know added tokens that tokenizer.json lacks; each must get the id that is stated."""
    listed = config.get("added_tokens_decoder")
    missing: list[tuple[int, AddedToken]] = []
    for key, entry in listed.items() if isinstance(listed, dict) else ():
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            continue
        if not (key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS):
            raise ModelLoadError(
                f"{file}: added_tokens_decoder has the key {key!r}, not a token id.", "Download the model again."
            )
        if core.token_to_id(entry["content"]) is None:
            special, normalized = bool(entry.get("special")), bool(entry.get("normalized"))
            missing.append((int(key), AddedToken(entry["content"], special=special, normalized=normalized)))
    core.add_tokens([token for _, token in sorted(missing, key=lambda item: item[0])])
    for stated, token in missing:
        if (got := core.token_to_id(token.content)) != stated:
            raise ModelLoadError(
                f"{file}: added_tokens_decoder puts {token.content!r} at id {stated}, but after tokenizer.json it is {got}.",
                "The two files do not belong together; download the model again.",
            )


def _id_of_named(core: Tokenizer, token: Any) -> int | None:
    """Id of a token that a config names as a string or as an AddedToken object."""
    if isinstance(token, dict):
        token = token.get("content")
    return core.token_to_id(token) if isinstance(token, str) else None


def _stated_ends(path: Path) -> Iterator[int]:
    """eos_token_id of generation_config.json and config.json: a number or a list."""
    for name in ("generation_config.json", "config.json"):
        stated = read_json(path / name).get("eos_token_id")
        for i in stated if isinstance(stated, list) else [stated]:
            if isinstance(i, int):
                yield i


def _surroundings(core: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the post-processor puts before and after a text."""
    bare, whole = (core.encode("a", add_special_tokens=special).ids for special in (False, True))
    n_extra = len(whole) - len(bare)
    for n_before in range(n_extra + 1):
        if whole[n_before : n_before + len(bare)] == bare:
            return tuple(whole[:n_before]), tuple(whole[n_before + len(bare) :])
    return (), ()


def _steps(decoder: Any) -> list[dict[str, Any]]:
    """A decoder's description (its JSON), with sequences laid flat."""
    state = json.loads(decoder.__getstate__()) if decoder is not None else {}
    return state["decoders"] if state.get("type") == "Sequence" else [state]


def _strips(core: Tokenizer) -> bool:
    """Does decoding take away a first space (because encoding put one there)?"""
    for step in _steps(core.decoder):
        if step.get("type") == "Strip" and step.get("content") == " " and step.get("start"):
            return True
        if step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never":
            return True
    return False


def _speller(path: Path, core: Tokenizer, plain: Mapping[int, str]) -> Callable[[int], bytes]:
    """Bytes of an id, by the spelling that the decoder implies."""
    kinds = {step.get("type") for step in _steps(core.decoder)}
    if "ByteLevel" in kinds:
        spell = pieces.byte_level
    elif kinds & {"ByteFallback", "Metaspace", "Replace"}:
        spell = pieces.sentencepiece
    else:
        raise ModelLoadError(
            f"{path / 'tokenizer.json'} decodes by {sorted(map(str, kinds))}, which Pagewell cannot turn into bytes.",
            "It reads byte-level and SentencePiece vocabularies.",
        )

    def bytes_of(token_id: int) -> bytes:
        if token_id in plain:
            return plain[token_id].encode()
        token = core.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        return spell(token) if token is not None else b""

    return bytes_of
