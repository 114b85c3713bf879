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


def block_keys(parent: bytes, token_ids: Sequence[int], block_size: int) -> list[bytes]:
    """Keys of the full blocks of these tokens: each the digest of its parent's key and its token ids as int32."""
    raw = array("i", token_ids).tobytes()
    step, keys = block_size * 4, []
    for start in range(0, len(raw) - step + 1, step):
        parent = hashlib.sha256(parent + raw[start : start + step]).digest()
        keys.append(parent)
    return keys
