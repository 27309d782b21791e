"""Exact attention on the CPU: a row gets the same bits alone, in a batch and in a tree, wherever its slots are.

Every (row, head) is a lane of its own (see `lanes`): it meets its keys in logical order, committed tokens
then ancestors, finds the largest score, and then sums. Keys that only other lanes see weigh exactly 0 in it.
Knows nothing of models. Invariant: no lane's arithmetic depends on its neighbours, on blocks or on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.attention.exact_kernel import (
    COUNTER,
    FIRST_SINK,
    HEAD_STEPS,
    KEY,
    LAYER,
    NUM_FIELDS,
    NUM_NODES,
    NUM_SEGMENTS,
    NUM_SLOTS,
    NUM_TABLE_BLOCKS,
    NUM_TILES,
    OUT,
    PARENTS,
    POSITIONS,
    QUERY,
    QUERY_HEAD,
    ROOM_WORDS,
    SCRATCH,
    SEGMENTS,
    TABLES,
    TILES,
    VALUE,
    WRITE_SLOTS,
    attend,
)
from decoding.attention.products import NUM_BLOCKS, SOME
from decoding.attention.step_table import StepTable, Table, make_segments, make_tiles
from decoding.attention.team import Team, compiled
from decoding.attention.tile_scratch import scratch_words
from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec

# Shape suffixes: H query heads, K kv heads, N model rows, D key width, V value width.
PARALLEL_WORK = 1 << 19  # multiply-adds below which waking another thread costs more than it saves
COUNTING_BLOCKS = np.arange(NUM_BLOCKS, dtype=np.int32)


class LayerArrays(NamedTuple):
    """What the kernel must know of a layer."""

    integers: Table
    numbers: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class LayerTables:
    """Of a model's layers over one store. fields: [layers, 4], where a call finds the arrays of each."""

    arrays: list[LayerArrays]
    fields: Table


@dataclass(frozen=True, slots=True)
class ExactPlan:
    """fields: of the running call, written anew for each layer; steps: a step's, by the layer's group."""

    batch: StepBatch
    layers: LayerTables
    segments: Table
    scratch: NDArray[np.float32]
    num_keys: int
    fields: Table
    steps: dict[int, tuple[Table, Table]] = field(default_factory=dict)

    def write(self, layers: int | slice, group: int, fields: Table) -> None:
        """Fill the fields of a layer's call, or of several layers' side by side, but for what the model hands over.

        group: query heads to a kv head, the same in these layers.
        """
        fields[..., COUNTER:QUERY_HEAD] = 0
        fields[..., LAYER:SEGMENTS] = self.layers.fields[layers]
        fields[..., SEGMENTS:NUM_FIELDS] = self._step(group)

    def _step(self, group: int) -> Table:
        """For the layers that have `group` query heads to a kv head; addresses are of arrays that the plan keeps."""
        known = self.steps.get(group)
        if known is None:
            batch, tiles = self.batch, make_tiles(self.segments, group)
            arrays = batch.blocks_T, batch.write_slots_M, batch.parents_P, batch.positions_P
            fields = _step_fields(StepTable(self.segments, tiles, *arrays), self.scratch)
            known = self.steps[group] = tiles, fields
        return known[1]


class ExactAttention:
    """Needs a `KvStore` of float32 or bfloat16. Tables that depend on layer and store alone are made once."""

    def __init__(self, layers: Sequence[LayerSpec]) -> None:
        self._specs = layers
        self._store: KvStore | None = None
        self._layers = LayerTables([], np.empty((0, 4), np.int64))
        self._scratch = np.empty((1, 0), np.float32)
        self._team = Team(attend)

    def prepare(self, batch: StepBatch) -> ExactPlan:
        store = batch.store
        if store is not self._store:
            self._store, self._layers = store, _layer_tables(self._specs, store)
        segments, num_keys = make_segments(batch)
        scratch = self._rooms(num_keys)
        return ExactPlan(batch, self._layers, segments, scratch, num_keys, np.empty(NUM_FIELDS, np.int64))

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
        fields[OUT] = out_1NHV.data_ptr()
        for tensor, address in ((query_1HND, QUERY), (key_1KND, KEY), (value_1KNV, VALUE)):
            _, head_step, row_step, column_step = tensor.stride()
            assert column_step == 1, "a head's numbers must lie side by side"
            fields[address] = tensor.data_ptr()
            fields[HEAD_STEPS[address] : HEAD_STEPS[address] + 2] = (head_step * item, row_step * item)
        num_pairs = max(plan.batch.num_tokens * layer.group, SOME * plan.batch.num_segments)
        work = num_pairs * layer.num_kv_heads * plan.num_keys * (layer.key_dim + layer.value_dim)
        self._team.run(fields.ctypes.data, torch.get_num_threads() if work > PARALLEL_WORK else 1)
        return out_1NHV

    def _rooms(self, num_keys: int) -> NDArray[np.float32]:
        """float32 [threads, words], kept from step to step and grown by halves."""
        words = max(scratch_words(num_keys, spec.key_dim, spec.value_dim) for spec in self._specs)
        num_threads = torch.get_num_threads()
        if self._scratch.shape[1] < words or len(self._scratch) < num_threads:
            self._scratch = np.zeros((num_threads, words + words // 2), np.float32)
        return self._scratch


def warm_up() -> None:
    """Compile what attends, or load it from numba's cache, so that no request has to wait."""
    compiled(attend)
    segments, numbers, words = np.zeros((0, 7), np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64)
    step = StepTable(segments, make_tiles(segments, 1), numbers, words, numbers, words)
    _step_fields(step, np.zeros((1, scratch_words(1, 1, 1)), np.float32))


@nb.njit(cache=True)
def _step_fields(step: StepTable, scratch: NDArray[np.float32]) -> Table:
    """Those that say where a step's arrays are, and how many rows they have."""
    fields = np.empty(NUM_FIELDS, np.int64)
    fields[SEGMENTS], fields[NUM_SEGMENTS] = step.segments.ctypes.data, len(step.segments)
    fields[TILES], fields[NUM_TILES] = step.tiles.ctypes.data, len(step.tiles)
    fields[TABLES], fields[NUM_TABLE_BLOCKS] = step.blocks_T.ctypes.data, len(step.blocks_T)
    fields[WRITE_SLOTS], fields[NUM_SLOTS] = step.write_slots_M.ctypes.data, len(step.write_slots_M)
    fields[PARENTS], fields[POSITIONS] = step.parents_P.ctypes.data, step.positions_P.ctypes.data
    fields[NUM_NODES] = len(step.parents_P)
    fields[SCRATCH], fields[ROOM_WORDS] = scratch.ctypes.data, scratch.shape[1]
    return fields[SEGMENTS:]


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
            keys_BHDS.element_size(),
            spec.window,
            spec.chunk,
            len(sinks) > 0,
        ],
        np.int64,
    )
    numbers = np.array([spec.scaling, spec.softcap, *sinks], np.float32)
    return LayerArrays(integers, numbers)
