"""The Triton kernels against the reference: interpreted on the CPU, compiled where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pytest
import torch

from decoding.attention.reference import ReferenceAttention
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockTable, num_blocks_for
from decoding.cache.kv_store import KvRows, KvStore, slots_of
from decoding.cache.step_tensors import StepBuffers, StepTensors, room_of
from decoding.core.layer import LayerSpec
from decoding.core.tree import IntArray
from tests.row_exact import use_row_exact_products
from tests.trees import random_parents

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.attention.triton import work
from decoding.attention.triton.tiles import Tile
from decoding.attention.triton.triton_attention import TritonAttention

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SMALL_TILE = Tile(pairs=32, keys=16, num_warps=4, num_stages=2)


def layer(query_heads: int, kv_heads: int, key_dim: int, value_dim: int = 0, **features: object) -> LayerSpec:
    sizes = {"num_query_heads": query_heads, "num_kv_heads": kv_heads, "key_dim": key_dim}
    more = {"value_dim": value_dim or key_dim, "scaling": key_dim**-0.5}
    return LayerSpec(index=0, **(sizes | more | features))  # type: ignore[arg-type]


SINKS = torch.linspace(-1.0, 2.0, 4).to(DEVICE)
LONGEST = "four share keys, 128 wide, sinks"  # is tried with long contexts and a large tree, too
FEATURES = {
    "a head each, 64 wide, window": layer(2, 2, 64, window=30),
    "two share keys, 96 wide, soft-cap": layer(4, 2, 96, softcap=3.0),
    LONGEST: layer(4, 1, 128, sinks=SINKS),
    "three share keys, 80 wide, chunks": layer(3, 1, 80, chunk=48),
    "keys wider than values, window of one block, soft-cap and sinks": layer(
        4, 2, 24, 12, window=16, softcap=2.0, sinks=SINKS
    ),
}


class Shape(NamedTuple):
    """Of a request: committed tokens, a prompt's chunk, and a tree on top, its root among them."""

    prefix: int
    chunk: int
    tree: int


MIXTURE = [Shape(0, 5, 0), Shape(3, 0, 1), Shape(130, 0, 65), Shape(520, 0, 6), Shape(70, 20, 12), Shape(0, 0, 7)]


@dataclass
class Step:
    """Some requests' rows over a store whose numbers are NaN wherever nobody wrote; blocks lie in no order.

    query, key, value: as models hand them over, with rows of padding.
    """

    batch: StepBatch
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


def tree_over(shape: Shape, seed: int) -> IntArray:
    tree = random_parents(shape.tree, np.random.default_rng(seed))[: shape.tree]
    return np.concatenate([np.arange(-1, shape.chunk - 1), tree + shape.chunk]).astype(np.int32)


def step_of(
    spec: LayerSpec,
    shapes: Sequence[Shape],
    dtype: torch.dtype = torch.float32,
    seeds: Sequence[int] = (),
    kv_dtype: torch.dtype | None = None,
) -> Step:
    """seeds: of the requests' numbers. kv_dtype: of the store, by default the model's."""
    store = KvStore([spec], 160, kv_dtype or dtype, DEVICE)
    for plane in store.planes(0):
        plane.fill_(float("nan"))
    free = np.random.default_rng(3).permutation(160).tolist()
    segments, parts = [], []
    for shape, seed in zip(shapes, seeds or range(len(shapes)), strict=True):
        num_rows = shape.chunk + shape.tree
        rows = rows_in([free.pop() for _ in range(num_blocks_for(shape.prefix + num_rows))], shape.prefix)
        drawn = _draw(spec, shape.prefix + num_rows, dtype, seed)
        if shape.prefix:
            _write(store, rows.table.blocks, *(each[:, : shape.prefix] for each in drawn[1:]))
        segments.append(Segment(rows, np.zeros(num_rows, np.int32), tree_over(shape, seed)))
        parts.append([each[:, shape.prefix :] for each in drawn])
    query, key, value = (_padded(torch.cat(each, dim=1)) for each in zip(*parts, strict=True))
    return Step(pack(segments, store), query, key, value)


def rows_in(blocks: Sequence[int], length: int) -> KvRows:
    """A sequence's rows in these blocks, so many of them committed."""
    table = BlockTable()
    for block in blocks:
        table.append(int(block))
    return KvRows(table, length)


def _draw(spec: LayerSpec, num_rows: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    heads = [spec.num_query_heads, spec.num_kv_heads, spec.num_kv_heads]
    widths = [spec.key_dim, spec.key_dim, spec.value_dim]
    return [
        torch.randn(count, num_rows, width, generator=generator).to(DEVICE, dtype)
        for count, width in zip(heads, widths, strict=True)
    ]


def _write(store: KvStore, blocks: IntArray, key: torch.Tensor, value: torch.Tensor) -> None:
    store.write(0, key, value, torch.from_numpy(slots_of(blocks, np.arange(key.shape[1]))).to(DEVICE))


def _padded(rows: torch.Tensor, count: int = 3) -> torch.Tensor:
    """[1, heads, rows and padding, width], rows outside in memory."""
    padding = rows.new_full((rows.shape[0], count, rows.shape[2]), 7.0)
    return torch.cat([rows, padding], dim=1).transpose(0, 1).contiguous().transpose(0, 1)[None]


def run(step: Step, spec: LayerSpec, tile: Tile | None = None) -> torch.Tensor:
    """[rows and padding, H, V]."""
    backend = TritonAttention([spec], step.query.dtype, DEVICE, [tile] if tile else None)
    return attend(backend, step, spec, backend.prepare(step.batch))


def attend(backend: TritonAttention, step: Step, spec: LayerSpec, plan: StepTensors) -> torch.Tensor:
    with torch.inference_mode():
        return backend.attend(spec, step.query, step.key, step.value, plan)[0]


def reference(step: Step, spec: LayerSpec) -> torch.Tensor:
    backend = ReferenceAttention()
    with torch.inference_mode():
        return backend.attend(spec, step.query, step.key, step.value, backend.prepare(step.batch))[0]


@pytest.mark.parametrize("feature", FEATURES)
def test_chunks_roots_and_trees_in_one_launch_agree_with_the_reference(feature: str) -> None:
    spec = FEATURES[feature]
    step = step_of(spec, MIXTURE if feature == LONGEST else [*MIXTURE[:2], *MIXTURE[4:]])
    actual, num_rows = run(step, spec), step.batch.num_tokens
    assert (actual[:num_rows] - reference(step, spec)[:num_rows]).abs().max() <= 2e-6
    assert torch.equal(actual[num_rows:], torch.zeros_like(actual[num_rows:])), "rows of padding"


@pytest.mark.slow
def test_eight_heads_share_keys_over_small_tiles_in_half_precision() -> None:
    spec = layer(8, 1, 64, window=100)
    step = step_of(spec, [Shape(130, 0, 20), *MIXTURE[4:]], torch.float16)
    num_rows = step.batch.num_tokens
    difference = run(step, spec, SMALL_TILE)[:num_rows] - reference(step, spec)[:num_rows]
    assert difference.abs().max() <= 2e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_over_fp8_it_agrees_with_the_reference_and_stores_what_a_cpu_does(dtype: torch.dtype) -> None:
    """Numbers too large for fp8, and such as are none, among those that are stored."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    spec = FEATURES[LONGEST]
    step, expected = (step_of(spec, [*MIXTURE[:2], *MIXTURE[3:]], dtype, kv_dtype=torch.float8_e4m3fn) for _ in "ab")
    for each in (step, expected):
        each.key[0, 0, 0, :2] = torch.tensor([-600.0, 449.0])
    num_rows = step.batch.num_tokens
    found, reference_found = run(step, spec)[:num_rows], reference(expected, spec)[:num_rows]
    assert (found - reference_found).abs().max() <= (2e-6 if dtype == torch.float32 else 5e-3)
    written = torch.from_numpy(step.batch.write_slots_M).to(DEVICE)
    blocks, places = written // BLOCK_LEN, written % BLOCK_LEN
    for ours, theirs in zip(step.batch.store.planes(0), expected.batch.store.planes(0), strict=True):
        is_key = ours.shape[2] != BLOCK_LEN
        for each, other in ((ours.view(torch.uint8), theirs.view(torch.uint8)),):
            rows = [part[blocks, :, :, places] if is_key else part[blocks, :, places] for part in (each, other)]
            assert torch.equal(*rows)


def test_what_is_no_number_is_none_in_fp8_either() -> None:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no fp8")
    spec = layer(2, 1, 32)
    step = step_of(spec, [Shape(0, 3, 0)], kv_dtype=torch.float8_e4m3fn)
    step.key[0, 0, :3, 0] = torch.tensor([float("inf"), float("nan"), -448.0])
    run(step, spec)
    keys_KTD, _ = step.batch.store.gather(0, torch.from_numpy(step.batch.blocks(0)).long().to(DEVICE), 3)
    assert keys_KTD[0, :, 0].float().isnan().tolist() == [True, True, False]
    assert keys_KTD[0, 2, 0].float() == -448.0


def test_a_row_has_the_same_bits_whatever_is_beside_it() -> None:
    spec = layer(2, 1, 16)
    shapes = [Shape(530, 0, 9), Shape(4, 2, 3)]
    for place, shape in enumerate(shapes):
        alone = run(step_of(spec, [shape], seeds=[place]), spec)
        crowd = run(step_of(spec, [Shape(20, 0, 4), *shapes], seeds=[7, 0, 1]), spec)
        first = 4 + sum(before.chunk + before.tree for before in shapes[:place])
        assert torch.equal(crowd[first : first + shape.chunk + shape.tree], alone[: shape.chunk + shape.tree])


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is interpreted is compared with row-exact products")
def test_a_row_has_the_same_bits_in_any_tile_and_however_many_programs_compute_a_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Roots, a chunk and a tree whose fork and whose tail lie in ranges of their own."""
    use_row_exact_products(monkeypatch)
    spec, shapes = layer(2, 1, 16, sinks=SINKS[:2]), [Shape(600, 0, 1), Shape(40, 70, 0), Shape(500, 0, 20)]
    found = []
    for few_jobs, many in ((0, 0), (10**6, 0), (0, 64)):
        monkeypatch.setattr(work, "FEW_JOBS", few_jobs)
        found.append(run(step_of(spec, shapes), spec, Tile(16, 64, 4, 1, many)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert (found[0] - reference(step_of(spec, shapes), spec))[:91].abs().max() <= 2e-6


def test_a_tree_that_grows_over_forwards_agrees_with_one_that_runs_at_once() -> None:
    spec, shape = layer(2, 1, 16, window=12), Shape(21, 0, 30)
    step = step_of(spec, [shape])
    expected = reference(step, spec)[:30]
    again, parents, found = step_of(spec, [shape]), tree_over(shape, 0), []
    rows = rows_in(again.batch.blocks(0), shape.prefix)
    for start, end in ((0, 1), (1, 17), (17, 30)):
        segment = Segment(rows, np.zeros(end - start, np.int32), parents[:end], num_written=start)
        part = [each[:, :, start:end] for each in (step.query, step.key, step.value)]
        found.append(run(Step(pack([segment], again.batch.store), *part), spec))
    assert (torch.cat(found) - expected).abs().max() <= 2e-6


def test_one_plan_serves_steps_of_a_bucket_and_padding_is_written_to_the_trash_block() -> None:
    spec = layer(2, 1, 16)
    steps = [step_of(spec, shapes) for shapes in ([Shape(300, 0, 9)], [Shape(2, 4, 0), Shape(33, 0, 3)])]
    backend = TritonAttention([spec], torch.float32, DEVICE)
    for step in steps:
        work = backend.share_out(step.batch)
        needed = room_of(step.batch, work)
        room = needed._replace(rows=16, logits=16, keys=400, work=backend.most_work(16, 400))
        plan = StepBuffers(step.batch.store, room).stage(step.batch, 16, work)
        num_rows, store = step.batch.num_tokens, step.batch.store
        step.query, step.key, step.value = (
            _padded(each[0, :, :num_rows], 16 - num_rows) for each in (step.query, step.key, step.value)
        )
        actual = attend(backend, step, spec, plan)
        written = (~store.planes(0)[0].isnan()).flatten(1).any(1).nonzero()[:, 0].tolist()
        assert sorted(written) == sorted([*step.batch.blocks_T, store.trash_block])
        assert (actual[:num_rows] - reference(step, spec)[:num_rows]).abs().max() <= 2e-6


def test_a_segment_reads_prefix_blocks_that_another_one_writes_in_the_same_step() -> None:
    spec = layer(2, 1, 16)
    step = step_of(spec, [Shape(0, 0, 4), Shape(0, 40, 0)])
    own, prompt = step.batch.blocks(0), step.batch.blocks(1)
    segments = [
        Segment(rows_in([*prompt[:2], *own], 32), np.zeros(4, np.int32)),
        Segment(rows_in(prompt, 0), np.zeros(40, np.int32)),
    ]
    shared = Step(pack(segments, step.batch.store), step.query, step.key, step.value)
    assert (run(shared, spec)[:44] - reference(shared, spec)[:44]).abs().max() <= 2e-6


EXACT = {
    "plain": layer(2, 1, 16),
    "window and sinks": layer(4, 1, 32, window=40, sinks=SINKS),
    "chunks and soft-cap": layer(1, 1, 16, chunk=64, softcap=3.0),
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is interpreted is compared with row-exact products")
@pytest.mark.parametrize(
    ("feature", "shape", "dtype"),
    [
        ("plain", Shape(0, 0, 20), torch.float32),
        ("plain", Shape(121, 0, 40), torch.float16),
        ("window and sinks", Shape(121, 0, 30), torch.float32),
        ("chunks and soft-cap", Shape(250, 12, 9), torch.float32),
        pytest.param("plain", Shape(500, 0, 33), torch.float32, marks=pytest.mark.slow),
    ],
)
def test_a_node_has_the_bits_of_its_path_decoded_token_by_token(
    monkeypatch: pytest.MonkeyPatch, feature: str, shape: Shape, dtype: torch.dtype
) -> None:
    """Wherever ranges of keys end, and wherever the tree's keys lie."""
    use_row_exact_products(monkeypatch)
    spec = EXACT[feature]
    step, parents = step_of(spec, [Shape(3, 0, 5), shape], dtype, [7, 1]), tree_over(shape, 1)
    found = run(step, spec, SMALL_TILE)[5 : 5 + len(parents)]
    _, keys, values = _draw(spec, shape.prefix + len(parents), dtype, 1)
    for node in (0, 1, len(parents) // 2, len(parents) - 1):
        path, place = [], node
        while place >= 0:
            path.append(place)
            place = int(parents[place])
        order = [*range(shape.prefix), *(shape.prefix + each for each in reversed(path))]
        plain = step_of(spec, [Shape(len(order) - 1, 0, 1)], dtype)
        blocks, row = plain.batch.blocks(0), 5 + node
        _write(plain.batch.store, blocks, keys[:, order[:-1]], values[:, order[:-1]])
        own = [_padded(each[0, :, row : row + 1]) for each in (step.query, step.key, step.value)]
        decoded = run(Step(plain.batch, *own), spec, SMALL_TILE)[0]
        assert torch.equal(found[node], decoded), node
