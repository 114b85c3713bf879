"""Block keys: chained SHA-256 digests that name the KV of a prefix, so that equal keys mean equal contents."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence


def root_key(extras: dict[str, str | int]) -> bytes:
    """Key before the first block: everything besides tokens that the KV depends on, or that keeps caches apart.

    `extras` is {name: value}, for example weights digest, KV dtype, block size, salt. Names and values are length-prefixed,
    so that no two different sets of extras give the same bytes.
    """
    digest = hashlib.sha256(b"pagewell-kv-1")
    for name in sorted(extras):
        value = extras[name]
        for part in (name, type(value).__name__, str(value)):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.digest()


def block_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Key of a full block: digest of the parent's key and this block's token ids as int32."""
    return hashlib.sha256(parent + array("i", token_ids).tobytes()).digest()
