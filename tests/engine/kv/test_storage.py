"""The cache's memory: blocks that belong to one layer each, a layout that the operators read in place, copies in every layer."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import pytest
import torch

from engine.kv.groups import KVGroup
from engine.kv.storage import GroupStorage, HostStorage, JoinedStorage, KVStorage, token_bytes
from engine.kv.tiers.connector import Holdings
from engine.kv.tiers.disk import DiskStore
from engine.kv.tiers.disk_tier import DiskTier
from engine.types import Moves
from engine.weights.config import KVShape
from kernels import registry
from kernels.ops import Impl
from kernels.reference import copy_blocks

N_LAYERS, N_BLOCKS, BLOCK_SIZE, N_HEADS, HEAD_DIM = 3, 5, 16, 2, 8
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8]


def _storage(dtype: torch.dtype = torch.float32) -> KVStorage:
    shape = KVShape(N_HEADS, HEAD_DIM, HEAD_DIM)
    storage = KVStorage(N_LAYERS, N_BLOCKS, BLOCK_SIZE, shape, dtype, torch.device("cpu"))
    for i in range(N_LAYERS):
        for j, plane in enumerate(_planes(storage, i)):
            for block in range(N_BLOCKS):
                plane[block] = _mark(i, block, j)
    return storage


def _mark(layer: int, block: int, plane: int) -> int:
    """What fills a block; below 128, for int8."""
    return 40 * layer + 8 * block + plane


def _planes(storage: KVStorage, layer: int) -> list[torch.Tensor]:
    k, v, scales = storage.layer(layer)
    if k.dtype == torch.float8_e4m3fn:  # its bits, for it does not hold all marks
        k, v = k.view(torch.int8), v.view(torch.int8)
    return [k, v, *(scale.unsqueeze(-1) for scale in scales or ())]


def _host(storage: KVStorage, n_slots: int) -> HostStorage:
    group = KVGroup(n_blocks=N_BLOCKS, layers=tuple(range(N_LAYERS)))
    return HostStorage(GroupStorage({group: storage}), [n_slots])


def _blocks(storage: KVStorage) -> list[list[int]]:
    """By layer, keys, values and the scales of each, the value that fills each block."""
    caches = [plane for i in range(N_LAYERS) for plane in _planes(storage, i)]
    assert all((cache == cache[:, :1, :1, :1]).all() for cache in caches)
    return [cache[:, 0, 0, 0].int().tolist() for cache in caches]


def test_each_layer_has_blocks_of_its_own() -> None:
    storage = _storage()
    assert storage.layer(0)[0].shape == (N_BLOCKS, BLOCK_SIZE, N_HEADS, HEAD_DIM)
    assert _blocks(storage) == [[_mark(i, block, j) for block in range(5)] for i in range(3) for j in range(2)]


def test_on_a_cpu_keys_lie_by_dims_and_values_by_tokens() -> None:
    k, v, scales = _storage(torch.int8).layer(1)
    assert k.stride() == (BLOCK_SIZE * N_HEADS * HEAD_DIM, 1, HEAD_DIM * BLOCK_SIZE, BLOCK_SIZE)
    assert v.stride() == (BLOCK_SIZE * N_HEADS * HEAD_DIM, HEAD_DIM, HEAD_DIM * BLOCK_SIZE, 1)
    for scale in scales:
        assert scale.shape == (N_BLOCKS, BLOCK_SIZE, N_HEADS) and scale.stride() == (BLOCK_SIZE * N_HEADS, 1, BLOCK_SIZE)


@pytest.mark.parametrize("source", ["as resolved", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_happen_in_every_layer(dtype: torch.dtype, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if source == "reference":
        plain = Impl("copy_blocks", "reference", copy_blocks, lambda spec: None, ())
        monkeypatch.setattr("engine.kv.storage.resolve", lambda op, spec: plain)
    storage = _storage(dtype)
    storage.copy([(0, 3), (0, 4), (2, 1)])
    n_planes = 4 if dtype == torch.int8 else 2
    wanted = [[_mark(i, block, j) for block in (0, 2, 2, 0, 0)] for i in range(3) for j in range(n_planes)]
    assert _blocks(storage) == wanted
    storage.copy([])
    assert _blocks(storage)[0][0] == 0


def test_the_copy_is_one_call_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    counted = Impl("copy_blocks", "cpp", lambda *args: calls.append(args), lambda spec: None, ())
    monkeypatch.setattr(registry, "_resolved", {})
    monkeypatch.setattr("engine.kv.storage.resolve", lambda op, spec: counted)
    _storage().copy([(1, 2)])
    assert [pairs for _, _, pairs, _ in calls] == [[(1, 2), (6, 7), (11, 12)]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_go_to_host_memory_and_come_back_into_others(dtype: torch.dtype) -> None:
    storage = _storage(dtype)
    before = _blocks(storage)
    host = _host(storage, 3)
    host.move([Moves(demotions=((1, 2), (4, 0)))])
    for i in range(N_LAYERS):
        for plane in _planes(storage, i):
            plane[1] = 0
    host.move([Moves(demotions=((3, 1),), promotions=((2, 4), (0, 1)))])
    assert _blocks(storage) == [[blocks[0], blocks[4], blocks[2], blocks[3], blocks[1]] for blocks in before]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_slots_memory_is_all_of_a_block_and_can_be_filled(dtype: torch.dtype) -> None:
    storage = _storage(dtype)
    host = _host(storage, 2)
    host.move([Moves(demotions=((3, 0),))])
    pieces = [bytes(piece) for piece in host.buffers(0)]
    assert sum(map(len, pieces)) == N_LAYERS * BLOCK_SIZE * token_bytes(KVShape(N_HEADS, HEAD_DIM, HEAD_DIM), dtype)
    for piece, content in zip(host.buffers(1), pieces, strict=True):
        piece[:] = content
    host.move([Moves(promotions=((1, 0),))])
    assert all(blocks[0] == blocks[3] for blocks in _blocks(storage))


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_are_known_on_disk_to_the_next_process_and_to_the_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    storage = _storage(dtype)
    before = _blocks(storage)
    host = _host(storage, 4)
    keys = [bytes([i]) * 32 for i in range(3)]
    tier = DiskTier(DiskStore(tmp_path, "kind", 1 << 20), host.buffers)
    host.move([Moves(demotions=((1, 0), (2, 1)))])
    stored = threading.Event()
    tier.store(keys[:2], (0, 1), stored.set)
    assert stored.wait(10)
    tier.close()
    again = DiskTier(DiskStore(tmp_path, "kind", 1 << 20), host.buffers)
    assert again.match(keys) == 2 and again.match(keys[1:]) == 1 and again.match(keys[2:]) == 0
    loaded: queue.SimpleQueue[int] = queue.SimpleQueue()
    again.load(keys, (2, 3, 0), loaded.put)
    assert loaded.get(timeout=10) == 2
    again.close()
    payload = 2 * sum(piece.nbytes for piece in host.buffers(0))
    (path,) = tmp_path.glob("*/*.kv")
    on_disk = path.stat().st_size
    assert tier.holdings() == Holdings(2, on_disk, 1 << 20, read_bytes=0, written_bytes=on_disk)
    assert again.holdings() == Holdings(2, on_disk, 1 << 20, read_bytes=payload, written_bytes=0)
    host.move([Moves(promotions=((2, 3), (3, 4)))])
    assert _blocks(storage) == [[*blocks[:3], blocks[1], blocks[2]] for blocks in before]


def _numbers(plane: torch.Tensor) -> torch.Tensor:
    """What holds any number below 128: of E4M3 its bits."""
    return plane.view(torch.int8) if plane.dtype.itemsize == 1 else plane


LATENT = KVShape(1, 24, 16, latent=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_latent_values_are_the_end_of_the_keys_and_are_kept_once(dtype: torch.dtype) -> None:
    storage = KVStorage(2, N_BLOCKS, BLOCK_SIZE, LATENT, dtype, torch.device("cpu"))
    k, v, scales = storage.layer(1)
    assert k.shape == (N_BLOCKS, BLOCK_SIZE, 1, 24) and v.shape == (N_BLOCKS, BLOCK_SIZE, 1, 16)
    _numbers(k).copy_(torch.arange(24))
    assert _numbers(v)[3, 5, 0].tolist() == list(range(8, 24))
    for scale in scales or ():
        scale[:] = torch.arange(N_BLOCKS)[:, None, None]
    k[4] = 0
    storage.copy([(3, 4)])
    assert torch.equal(k[4].float(), k[3].float()) and (scales is None or (scales[1][4] == 3).all())
    host = _host_of(storage, 2)
    assert sum(map(len, host.buffers(1))) == 2 * BLOCK_SIZE * token_bytes(LATENT, dtype)


def _host_of(storage: KVStorage | JoinedStorage, n_layers: int) -> HostStorage:
    return HostStorage(GroupStorage({KVGroup(n_blocks=N_BLOCKS, layers=tuple(range(n_layers))): storage}), [3])


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_whose_heads_differ_share_a_table_and_move_together(dtype: torch.dtype) -> None:
    shapes = {(0, 2): KVShape(2, 8, 8), (1,): KVShape(1, 24, 16), (3,): LATENT}
    sizes = N_BLOCKS, BLOCK_SIZE
    storage = JoinedStorage(
        {layers: KVStorage(len(layers), *sizes, shape, dtype, torch.device("cpu")) for layers, shape in shapes.items()}
    )
    by_layer = [next(shape for layers, shape in shapes.items() if layer in layers) for layer in range(4)]
    for layer, shape in enumerate(by_layer):
        k, v, _ = storage.layer(layer)
        assert (*k.shape[2:], v.shape[3]) == (shape.n_heads, shape.key_dim, shape.value_dim)
        for block in range(N_BLOCKS):
            _numbers(k)[block] = _numbers(v)[block] = 10 * layer + block
    host = _host_of(storage, 4)
    host.move([Moves(demotions=((3, 0),), promotions=((0, 1),))])
    storage.copy([(3, 4)])
    for layer in range(4):
        for plane in storage.layer(layer)[:2]:
            assert _numbers(plane)[:, 0, 0, 0].tolist() == [10 * layer + block for block in (0, 3, 2, 3, 3)]
    n_bytes = sum(token_bytes(shape, dtype) for shape in by_layer)
    assert sum(map(len, host.buffers(0))) == BLOCK_SIZE * n_bytes


def test_a_layer_that_shares_reads_the_keys_and_values_of_another() -> None:
    storage = _storage()
    joined = GroupStorage({KVGroup(n_blocks=N_BLOCKS, layers=(0, 1, 3)): storage}, sources=(0, 1, 0, 3, 1))
    assert joined.layer(2) is joined.layer(0) and joined.layer(4) is joined.layer(1) is storage.layer(1)
    assert [joined.group(i) for i in range(5)] == [0] * 5
