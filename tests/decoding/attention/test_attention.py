"""Attention backends: all agree with the reference, and the exact one gives a row the same bits everywhere."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from decoding.attention import exact
from decoding.attention.backend import AttentionBackend
from decoding.attention.exact import ExactAttention
from decoding.attention.padded import PaddedAttention
from decoding.attention.reference import ReferenceAttention
from decoding.attention.sdpa import SdpaAttention
from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockTable, num_blocks_for
from decoding.cache.kv_format import dtype_of, name_of
from decoding.cache.kv_store import KvRows, KvStore, slots_of
from decoding.core.layer import LayerSpec
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.kernels.cpu.attention.tables import MANY
from decoding.kernels.cpu.attention.tile_scratch import RANGE
from tests.trees import path_to, random_parents

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
KV_DTYPES = [dtype_of(name) for name in FORMATS]
KV_NAMED = pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=FORMATS)
# Of the model's tensors, and of keys and values in the cache.
KINDS = [(torch.float32, kv_dtype) for kv_dtype in KV_DTYPES]
KINDS += [(torch.bfloat16, kv_dtype) for kv_dtype in (*DTYPES, torch.int8)]
KINDS_NAMED = pytest.mark.parametrize(
    ("dtype", "kv_dtype"), KINDS, ids=[f"{name_of(one)} over {name_of(other)}" for one, other in KINDS]
)
NUM_BLOCKS = 128


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Two, so that rows and heads are shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def layer(**overrides: object) -> LayerSpec:
    fields = {"index": 0, "num_query_heads": 6, "num_kv_heads": 2, "key_dim": 32, "value_dim": 32, "scaling": 0.2}
    return LayerSpec(**(fields | overrides))  # type: ignore[arg-type]


SINKS = torch.linspace(-1.0, 2.0, 6)
FEATURES = {
    "plain": layer(),
    "one head per key head": layer(num_query_heads=2),
    "two heads per key head": layer(num_query_heads=4, key_dim=128, value_dim=128),
    "four heads per key head": layer(num_query_heads=8, key_dim=64, value_dim=64),
    "eight heads on one key head": layer(num_query_heads=8, num_kv_heads=1),
    "window": layer(window=8),
    "window of one": layer(window=1),
    "window of many blocks": layer(window=50),
    "chunk": layer(chunk=8),
    "chunk of many blocks": layer(chunk=48),
    "soft-cap": layer(softcap=3.0),
    "sinks": layer(sinks=SINKS),
    "window, soft-cap and sinks": layer(window=5, softcap=2.0, sinks=SINKS),
    "keys wider than values": layer(key_dim=24, value_dim=12),
    "odd widths": layer(key_dim=7, value_dim=5),
    "wide heads": layer(key_dim=80, value_dim=80),
    "narrow heads": layer(num_query_heads=4, key_dim=24, value_dim=24),
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


ORDERS = {
    "ascending": list(range(NUM_BLOCKS)),
    "descending": list(range(NUM_BLOCKS - 1, -1, -1)),
    "scattered": np.random.default_rng(3).permutation(NUM_BLOCKS).tolist(),
}


@dataclass
class Cache:
    """A store whose every number is NaN until somebody writes it, and blocks given out in a set order."""

    backend: AttentionBackend
    spec: LayerSpec
    dtype: torch.dtype
    kv_dtype: torch.dtype | None = None  # as `dtype`
    order: str = "scattered"
    free: list[int] = field(init=False)
    store: KvStore = field(init=False)

    def __post_init__(self) -> None:
        self.free = list(ORDERS[self.order])
        self.store = KvStore([self.spec], NUM_BLOCKS, self.kv_dtype or self.dtype, CPU)
        for plane in self.store.planes(0):
            plane.view(torch.int8).fill_(-1)  # NaN as any float, and as a scale

    def open(self, room: int, shared: Sequence[int] = ()) -> KvRows:
        """A sequence that has room for so many rows; the first blocks may be another's."""
        table = BlockTable()
        for block in shared:
            table.append(block)
        for _ in range(num_blocks_for(room) - len(shared)):
            table.append(self.free.pop())
        return KvRows(table)

    def attend(self, segments: Sequence[Segment], rows: Sequence[Row]) -> torch.Tensor:
        """[M, H, V]; tensors laid out as models hand them over: rows outside, heads inside, then transposed."""
        batch = pack(segments, self.store)
        query, key, value = (
            torch.stack([getattr(row, name) for row in rows])[None].transpose(1, 2)
            for name in ("query", "key", "value")
        )
        with torch.inference_mode():
            return self.backend.attend(self.spec, query, key, value, self.backend.prepare(batch))[0]

    def extend(self, rows: KvRows, new: Sequence[Row]) -> torch.Tensor:
        """Run a chain of rows and commit them all."""
        out = self.attend([chain(rows, len(new))], new)
        self.store.commit(rows, np.arange(len(new), dtype=np.int32))
        return out


def chain(rows: KvRows, count: int) -> Segment:
    return Segment(rows, np.zeros(count, np.int32))


def run_requests(cache: Cache, shapes: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Requests of (prefix, tree) rows: prefixes as prompts, then all trees in one step."""
    segments, rows = [], []
    for seed, (prefix_len, num_nodes) in enumerate(shapes):
        sequence = cache.open(prefix_len + num_nodes)
        if prefix_len:
            cache.extend(sequence, random_rows(cache.spec, prefix_len, cache.dtype, 100 + seed))
        parents = random_parents(num_nodes, np.random.default_rng(seed))
        segments.append(Segment(sequence, np.zeros(num_nodes, np.int32), parents))
        rows += random_rows(cache.spec, num_nodes, cache.dtype, seed)
    return cache.attend(segments, rows)


SHAPES = [(0, 5), (3, 1), (70, 20), (130, 66)]


def backend_cases() -> Iterator[tuple[str, str, torch.dtype, torch.dtype]]:
    """Keys and values of any format are whole before other backends than the exact one see them, whatever a layer
    asks of attention."""
    for feature, (dtype, kv_dtype), name in itertools.product(FEATURES, KINDS, ("exact", "sdpa", "padded")):
        if name == "exact" or dtype == kv_dtype or feature in ("plain", "odd widths"):
            yield name, feature, dtype, kv_dtype


@pytest.mark.parametrize(
    ("name", "feature", "dtype", "kv_dtype"),
    [
        pytest.param(name, feature, dtype, kv_dtype, id=f"{name}-{name_of(dtype)} over {name_of(kv_dtype)}-{feature}")
        for name, feature, dtype, kv_dtype in backend_cases()
    ],
)
def test_every_backend_agrees_with_the_reference(
    name: str, feature: str, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    spec = FEATURES[feature]
    backends = {"exact": lambda: ExactAttention([spec]), "sdpa": lambda: SdpaAttention(CPU), "padded": PaddedAttention}
    backend = backends[name]()
    expected = run_requests(Cache(ReferenceAttention(), spec, dtype, kv_dtype), SHAPES)
    actual = run_requests(Cache(backend, spec, dtype, kv_dtype), SHAPES)
    tolerance = 2e-5 if dtype == torch.float32 and kv_dtype != torch.bfloat16 else 3e-2
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("feature", FEATURES)
@KINDS_NAMED
def test_a_tree_row_has_the_bits_of_its_path_decoded_one_by_one(
    feature: str, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    spec, backend = FEATURES[feature], ExactAttention([FEATURES[feature]])
    num_nodes, prefix_len = 40, 90
    parents = random_parents(num_nodes, np.random.default_rng(5))
    prefix, nodes = random_rows(spec, prefix_len, dtype, 1), random_rows(spec, num_nodes, dtype, 2)
    cache = Cache(backend, spec, dtype, kv_dtype)
    other, sequence = cache.open(300), cache.open(300)
    cache.extend(sequence, prefix)
    crowd = [chain(other, 33), Segment(sequence, np.zeros(num_nodes, np.int32), parents)]
    tree = cache.attend(crowd, random_rows(spec, 33, dtype, 9) + nodes)[33:]
    for node in (0, 7, num_nodes - 1):
        alone = Cache(backend, spec, dtype, kv_dtype, "descending")
        plain = alone.open(300)
        for row in prefix + [nodes[step] for step in path_to(node, parents)]:
            last = alone.extend(plain, [row])
        assert torch.equal(last[0], tree[node])


@pytest.mark.parametrize("feature", FEATURES)
@KINDS_NAMED
def test_a_prompt_has_the_same_bits_in_chunks_of_any_length_and_blocks_in_any_order(
    feature: str, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    spec, backend = FEATURES[feature], ExactAttention([FEATURES[feature]])
    rows = random_rows(spec, 150, dtype, 1)
    results = []
    for order, lengths in (("ascending", [150]), ("descending", [64, 1, 85]), ("scattered", [7] * 21 + [3])):
        cache = Cache(backend, spec, dtype, kv_dtype, order)
        sequence = cache.open(150)
        ends = np.cumsum(lengths).tolist()
        chunks = [rows[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        results.append(torch.cat([cache.extend(sequence, chunk) for chunk in chunks]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("feature", ["plain", "window of many blocks", "window, soft-cap and sinks", "odd widths"])
@pytest.mark.parametrize("prefix_len", [RANGE - 40, RANGE - 1, RANGE, RANGE + 1, 2 * RANGE - 17])
@KV_NAMED
def test_a_tree_across_the_end_of_a_range_has_the_bits_of_its_paths_as_prompts(
    feature: str, prefix_len: int, kv_dtype: torch.dtype
) -> None:
    """Paths go beyond the range in which the tree begins, and a deep one may fill the next."""
    spec, num_nodes = FEATURES[feature], 90
    parents = random_parents(num_nodes, np.random.default_rng(5))
    parents[1:60] = np.arange(59)  # a long branch, from which others leave
    prefix = random_rows(spec, prefix_len, torch.float32, 1)
    nodes = random_rows(spec, num_nodes, torch.float32, 2)
    cache = Cache(ExactAttention([spec]), spec, torch.float32, kv_dtype)
    sequence = cache.open(prefix_len + num_nodes)
    prompt = cache.extend(sequence, prefix)
    assert prompt.isfinite().all()
    tree = cache.attend([Segment(sequence, np.zeros(num_nodes, np.int32), parents)], nodes)
    for node in (0, 20, 59, num_nodes - 1):
        alone = Cache(cache.backend, spec, torch.float32, kv_dtype, "descending")
        path = path_to(node, parents)
        chained = alone.extend(alone.open(prefix_len + len(path)), prefix + [nodes[step] for step in path])
        assert torch.equal(chained[:prefix_len], prompt)
        assert torch.equal(chained[-1], tree[node])


@KV_NAMED
def test_a_large_prompt_has_the_bits_of_its_rows_alone(kv_dtype: torch.dtype) -> None:
    """Its tiles are larger than those of few rows."""
    spec, num_rows = FEATURES["eight heads on one key head"], 400
    rows = random_rows(spec, num_rows, torch.float32, 1)
    cache = Cache(ExactAttention([spec]), spec, torch.float32, kv_dtype)
    whole, single = cache.open(num_rows), cache.open(num_rows)
    expected = cache.extend(whole, rows)
    cache.extend(single, rows[:300])
    found = torch.cat([cache.extend(single, [row]) for row in rows[300:]])
    assert num_rows * spec.group > MANY
    assert torch.equal(found, expected[300:])


@KV_NAMED
def test_what_is_not_a_number_is_not_hidden(kv_dtype: torch.dtype) -> None:
    spec = FEATURES["plain"]
    rows = random_rows(spec, 20, torch.float32, 1)
    rows[7].query[:] = float("nan")
    cache = Cache(ExactAttention([spec]), spec, torch.float32, kv_dtype)
    out = cache.extend(cache.open(20), rows)
    assert out[7].isnan().all()
    assert out[[row for row in range(20) if row != 7]].isfinite().all()


@pytest.mark.parametrize("feature", ["plain", "keys wider than values", "odd widths", "wide heads"])
@KINDS_NAMED
def test_the_kernel_stores_the_bits_of_packed_rows(feature: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    spec, sizes = FEATURES[feature], [0.0, 1e-44, 1e-39, 1e-7, 0.01, 1.0, 300.0, 60_000.0, 1e38, torch.inf, torch.nan]
    rows = random_rows(spec, 3 * len(sizes), dtype, 1)
    for row, size in zip(rows, sizes * 3, strict=True):
        row.key[..., 1:] *= size  # in a row that has ordinary numbers, too
        row.value *= size
    cache = Cache(ExactAttention([spec]), spec, dtype, kv_dtype)
    sequence = cache.open(len(rows))
    cache.extend(sequence, rows)
    found = [plane.clone() for plane in cache.store.planes(0)]
    slots_M = torch.from_numpy(slots_of(sequence.table.blocks, np.arange(len(rows))))
    key, value = (torch.stack([getattr(row, name) for row in rows], dim=1) for name in ("key", "value"))
    cache.store.write(0, key, value, slots_M)
    for plane, expected in zip(found, cache.store.planes(0), strict=True):
        is_nan = [each.float().isnan() for each in (plane, expected)]
        assert torch.equal(*is_nan)
        bits = [torch.where(each.float().isnan(), 0.0, each.float()) for each in (plane, expected)]
        assert torch.equal(*bits)


@KV_NAMED
def test_a_row_that_holds_no_number_is_read_as_none(kv_dtype: torch.dtype) -> None:
    """Even in a format that has no code for it."""
    spec = FEATURES["plain"]
    rows = random_rows(spec, 20, torch.float32, 1)
    rows[7].value[:, 3] = torch.nan
    cache = Cache(ExactAttention([spec]), spec, torch.float32, kv_dtype)
    out = cache.extend(cache.open(20), rows)
    assert out[7:, :, 3].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_segment_reads_prefix_blocks_that_another_one_writes_in_the_same_step(dtype: torch.dtype) -> None:
    spec = FEATURES["four heads per key head"]
    prompt, tails = random_rows(spec, 48, dtype, 1), [random_rows(spec, 9, dtype, seed) for seed in (2, 3)]
    cache = Cache(ExactAttention([spec]), spec, dtype)
    writer = cache.open(57)
    reader = cache.open(57, writer.table.blocks[: 48 // BLOCK_LEN].tolist())
    reader.length = 48
    # The reader stands first, so that its keys are there only if all rows are stored before any attends.
    out = cache.attend([chain(reader, 9), chain(writer, 57)], tails[1] + prompt + tails[0])
    alone = Cache(cache.backend, spec, dtype)
    for tail, found in ((tails[0], out[-9:]), (tails[1], out[:9])):
        sequence = alone.open(57)
        alone.extend(sequence, prompt)
        assert torch.equal(alone.extend(sequence, tail), found)


@pytest.mark.parametrize("feature", ["plain", "window", "chunk of many blocks", "odd widths"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tree_that_grows_over_forwards_has_the_bits_of_one_that_runs_at_once(
    feature: str, dtype: torch.dtype
) -> None:
    spec = FEATURES[feature]
    cache = Cache(ExactAttention([spec]), spec, dtype)
    num_nodes, parents = 60, random_parents(60, np.random.default_rng(8))
    prefix, nodes = random_rows(spec, 37, dtype, 1), random_rows(spec, num_nodes, dtype, 2)
    at_once, growing = cache.open(97), cache.open(97)
    cache.extend(at_once, prefix)
    cache.extend(growing, prefix)
    expected = cache.attend([Segment(at_once, np.zeros(num_nodes, np.int32), parents)], nodes)
    found, bounds = [], [0, 1, 12, 13, 45, 60]
    for start, end in itertools.pairwise(bounds):
        segment = Segment(growing, np.zeros(end - start, np.int32), parents[:end], num_written=start)
        found.append(cache.attend([segment], nodes[start:end]))
    assert torch.equal(torch.cat(found), expected)


@pytest.mark.parametrize("feature", ["window, soft-cap and sinks", "two heads per key head"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_no_bit(monkeypatch: pytest.MonkeyPatch, feature: str, dtype: torch.dtype) -> None:
    spec, results = FEATURES[feature], []
    for least_work in (0, 1 << 60):
        monkeypatch.setattr(exact, "PARALLEL_WORK", least_work)
        results.append(run_requests(Cache(ExactAttention([spec]), spec, dtype), SHAPES))
    assert torch.equal(*results)


@pytest.mark.parametrize("feature", FEATURES)
@KINDS_NAMED
def test_slots_that_nobody_wrote_do_not_leak(feature: str, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    spec = FEATURES[feature]
    cache = Cache(ExactAttention([spec]), spec, dtype, kv_dtype)
    out = run_requests(cache, SHAPES)
    assert torch.isfinite(out).all()
    keys, values = cache.store.gather(0, torch.arange(NUM_BLOCKS), NUM_BLOCKS * BLOCK_LEN)
    assert keys.float().isnan().any(), "the test must leave garbage to be met"
    assert values.float().isnan().any()
