"""Attention backends: all agree with the reference, and the exact one gives a row the same bits everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from decoding.attention import exact
from decoding.attention.backend import AttentionBackend
from decoding.attention.exact import ExactAttention
from decoding.attention.reference import ReferenceAttention
from decoding.attention.sdpa import SdpaAttention
from decoding.cache.batch import Segment, pack
from decoding.cache.slab import SlabStore
from decoding.cache.slot_pool import SlotPool
from decoding.cache.store import KvStore
from decoding.core.layer import LayerSpec
from tests.trees import path_to, random_parents

CPU = torch.device("cpu")
SINKS = torch.linspace(-1.0, 2.0, 6)


def layer(**overrides: object) -> LayerSpec:
    fields = {"index": 0, "num_query_heads": 6, "num_kv_heads": 2, "key_dim": 32, "value_dim": 32, "scaling": 0.2}
    return LayerSpec(**(fields | overrides))  # type: ignore[arg-type]


FEATURES = {
    "plain": layer(),
    "one head per key head": layer(num_query_heads=2),
    "window": layer(window=8),
    "window of one": layer(window=1),
    "chunk": layer(chunk=8),
    "soft-cap": layer(softcap=3.0),
    "sinks": layer(sinks=SINKS),
    "window, soft-cap and sinks": layer(window=5, softcap=2.0, sinks=SINKS),
    "keys wider than values": layer(key_dim=24, value_dim=12),
    "odd widths": layer(key_dim=7, value_dim=5),
    "wide heads": layer(key_dim=80, value_dim=80),
}


@dataclass
class Row:
    """One row's random inputs: [H, D], [K, D], [K, V]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def random_rows(spec: LayerSpec, num_rows: int, dtype: torch.dtype, seed: int) -> list[Row]:
    generator = torch.Generator().manual_seed(seed)

    def draw(heads: int, width: int) -> torch.Tensor:
        return torch.randn(heads, width, generator=generator).to(dtype)

    return [
        Row(
            draw(spec.num_query_heads, spec.key_dim) * 2,
            draw(spec.num_kv_heads, spec.key_dim),
            draw(spec.num_kv_heads, spec.value_dim),
        )
        for _ in range(num_rows)
    ]


def make_store(kind: str, spec: LayerSpec, dtype: torch.dtype) -> KvStore:
    return SlabStore([spec], 2048, dtype) if kind == "slab" else SlotPool([spec], 2048, dtype, CPU)


def attend(
    backend: AttentionBackend, spec: LayerSpec, store: KvStore, segments: Sequence[Segment], rows: Sequence[Row]
) -> torch.Tensor:
    """[M, H, V]; tensors laid out as models hand them over: rows outside, heads inside, then transposed."""
    batch = pack(segments, store)
    query, key, value = (
        torch.stack([getattr(row, name) for row in rows])[None].transpose(1, 2) for name in ("query", "key", "value")
    )
    with torch.inference_mode():
        return backend.attend(spec, query, key, value, backend.prepare(batch))[0]


def run_requests(
    backend: AttentionBackend, kind: str, spec: LayerSpec, dtype: torch.dtype, shapes: Sequence[tuple[int, int]]
) -> torch.Tensor:
    """Requests of (prefix, tree) rows: prefixes as prompts, then all trees in one step."""
    store = make_store(kind, spec, dtype)
    handles, segments, rows = [], [], []
    for seed, (prefix_len, num_nodes) in enumerate(shapes):
        handle = store.allocate(prefix_len + num_nodes)
        assert handle is not None
        prefix = random_rows(spec, prefix_len, dtype, 100 + seed)
        if prefix_len:
            attend(backend, spec, store, [Segment(handle, np.zeros(prefix_len, np.int32))], prefix)
            store.commit(handle, np.arange(prefix_len, dtype=np.int32))
        parents = random_parents(num_nodes, np.random.default_rng(seed))
        segments.append(Segment(handle, np.zeros(num_nodes, np.int32), parents))
        rows += random_rows(spec, num_nodes, dtype, seed)
        handles.append(handle)
    return attend(backend, spec, store, segments, rows)


SHAPES = [(0, 5), (3, 1), (70, 20), (130, 66)]


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["exact", "sdpa on slab", "sdpa on pool"])
def test_every_backend_agrees_with_the_reference(name: str, feature: str, dtype: torch.dtype) -> None:
    spec = FEATURES[feature]
    backend = ExactAttention([spec]) if name == "exact" else SdpaAttention(CPU)
    expected = run_requests(ReferenceAttention(), "slab", spec, dtype, SHAPES)
    actual = run_requests(backend, "pool" if name.endswith("pool") else "slab", spec, dtype, SHAPES)
    tolerance = 2e-5 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def test_the_reference_is_the_same_in_float64_on_both_stores() -> None:
    spec = FEATURES["window, soft-cap and sinks"]
    on_slab = run_requests(ReferenceAttention(), "slab", spec, torch.float64, SHAPES)
    on_pool = run_requests(ReferenceAttention(), "pool", spec, torch.float64, SHAPES)
    assert torch.equal(on_slab, on_pool)


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tree_row_has_the_bits_of_its_path_decoded_one_by_one(feature: str, dtype: torch.dtype) -> None:
    spec, backend = FEATURES[feature], ExactAttention([FEATURES[feature]])
    num_nodes, prefix_len = 40, 90
    parents = random_parents(num_nodes, np.random.default_rng(5))
    prefix, nodes = random_rows(spec, prefix_len, dtype, 1), random_rows(spec, num_nodes, dtype, 2)
    store = make_store("slab", spec, dtype)
    other, handle = store.allocate(300), store.allocate(300)
    assert other is not None
    assert handle is not None
    attend(backend, spec, store, [Segment(handle, np.zeros(prefix_len, np.int32))], prefix)
    store.commit(handle, np.arange(prefix_len, dtype=np.int32))
    crowd = [Segment(other, np.zeros(33, np.int32)), Segment(handle, np.zeros(num_nodes, np.int32), parents)]
    tree = attend(backend, spec, store, crowd, random_rows(spec, 33, dtype, 9) + nodes)[33:]
    store.commit(handle, np.empty(0, np.int32))
    for node in (0, 7, num_nodes - 1):
        alone = make_store("slab", spec, dtype)
        plain = alone.allocate(300)
        assert plain is not None
        for row in prefix + [nodes[step] for step in path_to(node, parents)]:
            last = attend(backend, spec, alone, [Segment(plain, np.zeros(1, np.int32))], [row])
            alone.commit(plain, np.zeros(1, np.int32))
        assert torch.equal(last[0], tree[node])


def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = FEATURES["window, soft-cap and sinks"]
    results = []
    for least_work in (0, 1 << 60):
        monkeypatch.setattr(exact, "PARALLEL_WORK", least_work)
        results.append(run_requests(ExactAttention([spec]), "slab", spec, torch.float32, SHAPES))
    assert torch.equal(*results)


def test_keys_of_other_requests_and_garbage_do_not_leak() -> None:
    spec = FEATURES["plain"]
    store = make_store("slab", spec, torch.float32)
    assert isinstance(store, SlabStore)
    for plane in store.planes(0):
        plane.fill_(float("nan"))
    handle = store.allocate(30)
    assert handle is not None
    rows = random_rows(spec, 21, torch.float32, 0)
    out = attend(ExactAttention([spec]), spec, store, [Segment(handle, np.zeros(21, np.int32))], rows)
    assert torch.isfinite(out).all()
