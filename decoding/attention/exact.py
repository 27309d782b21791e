"""Exact attention on the CPU: a token's result has the same bits alone, in a batch and in a tree, in any slots.

Every (token, head) pair is computed by itself: it takes its keys in logical order (committed tokens, then ancestors),
finds the largest score, then sums. Keys that only other tokens see weigh exactly 0. In this file and in its kernels a
row is a token of the step. Invariant: a pair's arithmetic does not depend on other pairs, on blocks or on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.kv_format import name_of
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec
from decoding.kernels.cpu.attention.call_table import (
    COUNTER,
    FIRST_SINK,
    HEAD_STEPS,
    ITEM,
    KEY,
    LAYER,
    NUM_FIELDS,
    OUT,
    QUERY,
    QUERY_HEAD,
    SEGMENTS,
    VALUE,
)
from decoding.kernels.cpu.attention.exact import attend
from decoding.kernels.cpu.attention.formats import FORMATS
from decoding.kernels.cpu.attention.products import HAS_PAIRS, NUM_BLOCKS, SOME
from decoding.kernels.cpu.attention.step_table import (
    StepTable,
    Table,
)
from decoding.kernels.cpu.attention.tables import SegmentColumns, fill_segments, make_tiles, step_fields
from decoding.kernels.cpu.attention.tile_scratch import scratch_words
from decoding.kernels.cpu.products.tiles import HAS_TILES
from decoding.kernels.cpu.program import Kernel, compiled

# Shape suffixes: H query heads, K kv heads, N tokens and padding, D key width, V value width.
PARALLEL_WORK = 1 << 19  # with fewer multiply-adds, waking another thread costs more than it saves
COUNTING_BLOCKS = np.arange(NUM_BLOCKS, dtype=np.int32)


class LayerArrays(NamedTuple):
    """One layer's constants for the kernel."""

    integers: Table
    numbers: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerTables:
    """The constants of all layers over one store. fields: [layers, 4], the addresses by which a call finds them."""

    arrays: list[LayerArrays]
    fields: Table


@dataclass(frozen=True, slots=True)
class ExactPlan:
    """One step. num_keys, num_nodes: the most of a segment and of a tree. fields: the running call's, rewritten for
    each layer. steps: by query heads per kv head, the tiles and the fields that all such layers share."""

    batch: StepBatch
    layers: LayerTables
    segments: Table
    scratch: NDArray[np.float32]
    num_keys: int
    num_nodes: int
    fields: Table
    steps: dict[int, tuple[Table, Table]] = field(default_factory=dict)

    def write(self, layers: int | slice, group: int, fields: Table) -> None:
        """Fill the fields of one layer's call, or of several layers', except the addresses that the model passes.

        group: query heads per kv head, the same in these layers.
        """
        fields[..., COUNTER:QUERY_HEAD] = 0
        fields[..., LAYER:SEGMENTS] = self.layers.fields[layers]
        fields[..., SEGMENTS:NUM_FIELDS] = self._step(group)

    def _step(self, group: int) -> Table:
        """The fields that layers of `group` query heads per kv head share. The plan keeps the arrays they point to."""
        known = self.steps.get(group)
        if known is None:
            batch, tiles = self.batch, make_tiles(self.segments, group)
            arrays = batch.blocks_T, batch.write_slots_M, batch.parents_P, batch.positions_P
            fields = step_fields(StepTable(self.segments, tiles, *arrays), self.scratch, self.num_nodes)
            known = self.steps[group] = tiles, fields
        return known[1]


class ExactAttention:
    """Needs tensors of float32 or bfloat16, and stores of `FORMATS`. Tables that depend on layer and store are made
    once."""

    def __init__(self, layers: Sequence[LayerSpec]) -> None:
        self._specs = layers
        self._store: KvStore | None = None
        self._layers = LayerTables([], np.empty((0, 4), np.int64))
        self._most_nodes, self._scratch = 0, np.empty((0, 0), np.float32)
        self._kernel = Kernel(attend)

    def prepare(self, batch: StepBatch) -> ExactPlan:
        store = batch.store
        if store is not self._store:
            self._store, self._layers = store, _layer_tables(self._specs, store)
        segments, num_keys, num_nodes = make_segments(batch)
        scratch, fields = self._rooms(num_nodes), np.empty(NUM_FIELDS, np.int64)
        return ExactPlan(batch, self._layers, segments, scratch, num_keys, num_nodes, fields)

    def attend(
        self,
        layer: LayerSpec,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KNV: torch.Tensor,
        plan: ExactPlan,
    ) -> torch.Tensor:
        _, num_heads, num_rows, _ = query_1HND.shape
        make = torch.empty if num_rows == plan.batch.num_tokens else torch.zeros
        out_1NHV = make(1, num_rows, num_heads, layer.value_dim, dtype=query_1HND.dtype)
        fields, item = plan.fields, query_1HND.element_size()
        plan.write(layer.index, layer.group, fields)
        fields[OUT], fields[ITEM] = out_1NHV.data_ptr(), item
        for tensor, address in ((query_1HND, QUERY), (key_1KND, KEY), (value_1KNV, VALUE)):
            _, head_step, row_step, column_step = tensor.stride()
            assert column_step == 1, "a head's numbers must lie side by side"
            fields[address] = tensor.data_ptr()
            fields[HEAD_STEPS[address] : HEAD_STEPS[address] + 2] = (head_step * item, row_step * item)
        num_pairs = max(plan.batch.num_tokens * layer.group, SOME * plan.batch.num_segments)
        work = num_pairs * layer.num_kv_heads * plan.num_keys * (layer.key_dim + layer.value_dim)
        self._kernel.run(fields.ctypes.data, torch.get_num_threads() if work > PARALLEL_WORK else 1)
        return out_1NHV

    def _rooms(self, num_nodes: int) -> NDArray[np.float32]:
        """float32 [threads, words], kept between steps. It grows with the largest tree of a step, by half as much more
        each time."""
        num_threads = torch.get_num_threads()
        if num_nodes > self._most_nodes or num_threads > len(self._scratch):
            self._most_nodes = num_nodes + num_nodes // 2
            sizes = [scratch_words(self._most_nodes, spec.key_dim, spec.value_dim) for spec in self._specs]
            words = max(sizes, default=1)  # where no layer attends
            self._scratch = np.zeros((num_threads, words), np.float32)
        return self._scratch


def arithmetic(dtype: torch.dtype) -> str:
    """What attention computes with where keys and values are stored as `dtype`: two processors of one answer give the
    same bits."""
    if dtype == torch.bfloat16 and HAS_PAIRS:
        return "bfloat16 in tiles" if HAS_TILES else "pairs of bfloat16"
    return "float32" if dtype == torch.float32 else f"{name_of(dtype)} as float32"


def warm_up() -> None:
    """Compile the kernels, or load them from numba's cache, so that no request waits for it."""
    compiled(attend)
    segments, numbers, words = np.zeros((0, 7), np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    step = StepTable(segments, make_tiles(segments, 1), numbers, words, numbers, words)
    step_fields(step, np.zeros((1, scratch_words(1, 1, 1)), np.float32), 0)


def make_segments(batch: StepBatch) -> tuple[Table, int, int]:
    """The segments, int64 [B, 7]; the most keys that a segment has; and the most nodes of a tree."""
    return fill_segments(
        SegmentColumns(
            batch.table_offsets,
            batch.prefix_lens,
            batch.offsets,
            batch.is_chain,
            batch.tree_offsets,
            batch.num_written,
        )
    )


def _layer_tables(specs: Sequence[LayerSpec], store: KvStore) -> LayerTables:
    arrays = [_layer_arrays(spec, store) for spec in specs]
    counting = COUNTING_BLOCKS.ctypes.data
    fields = [
        (integers.ctypes.data, numbers.ctypes.data, len(numbers) - FIRST_SINK, counting) for integers, numbers in arrays
    ]
    return LayerTables(arrays, np.array(fields, np.int64))


def _layer_arrays(spec: LayerSpec, store: KvStore) -> LayerArrays:
    keys_BHDS, values_BHSV = store.planes(spec.index)
    sinks = [] if spec.sinks is None else spec.sinks.float().tolist()
    integers = np.array(
        [
            keys_BHDS.data_ptr(),
            values_BHSV.data_ptr(),
            spec.num_kv_heads,
            spec.group,
            spec.key_dim,
            spec.value_dim,
            FORMATS.index(name_of(store.dtype)),
            spec.window,
            spec.chunk,
            len(sinks) > 0,
        ],
        np.int64,
    )
    numbers = np.array([spec.scaling, spec.softcap, *sinks], np.float32)
    return LayerArrays(integers, numbers)
