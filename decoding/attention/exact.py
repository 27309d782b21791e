"""Exact attention on the CPU: a row gets the same bits alone, in a batch and in a tree, wherever its slots are.

Every (row, head) is a lane of its own (see `lanes`): it meets its keys in logical order, committed tokens
then ancestors, finds the largest score, and then sums. Keys that only other lanes see weigh exactly 0 in it.
Knows nothing of models. Invariant: no lane's arithmetic depends on its neighbours, on blocks or on threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.attention.exact_kernel import LayerTable, attend_parallel, attend_serial
from decoding.attention.products import NUM_BLOCKS, SOME
from decoding.attention.step_table import StepTable, make_segments, make_step, make_tiles
from decoding.attention.tile_scratch import scratch_words
from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.core.layer import LayerSpec

# Shape suffixes: H query heads, K kv heads, N model rows, D key width, V value width.
PARALLEL_WORK = 1 << 22  # multiply-adds below which waking another thread costs more than it saves
COUNTING = np.arange(NUM_BLOCKS, dtype=np.int32)
Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ExactPlan:
    """call: the table of the running call, written anew for each layer; tables: the step's, by the layer's group."""

    batch: StepBatch
    layers: list[LayerTable]
    segments: Table
    scratch: NDArray[np.float32]
    num_keys: int
    call: Table
    tables: dict[int, StepTable] = field(default_factory=dict)

    def table(self, group: int) -> StepTable:
        table = self.tables.get(group)
        if table is None:
            table = self.tables[group] = make_step(self.batch, self.segments, group)
        return table


class ExactAttention:
    """Needs a `KvStore` of float32 or bfloat16. Tables that depend on layer and store alone are made once."""

    def __init__(self, layers: Sequence[LayerSpec]) -> None:
        self._specs = layers
        self._store: KvStore | None = None
        self._layers: list[LayerTable] = []
        self._scratch = np.empty((1, 0), np.float32)
        warm_up()

    def prepare(self, batch: StepBatch) -> ExactPlan:
        store = batch.store
        if store is not self._store:
            self._store, self._layers = store, [_layer_table(spec, store) for spec in self._specs]
        segments, num_keys = make_segments(batch)
        return ExactPlan(batch, self._layers, segments, self._room(num_keys), num_keys, np.empty(10, np.int64))

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
        item = query_1HND.element_size()
        place = 0
        for tensor in (query_1HND, key_1KND, value_1KNV):
            _, head_step, row_step, column_step = tensor.stride()
            assert column_step == 1, "a head's numbers must lie side by side"
            plan.call[place : place + 3] = (tensor.data_ptr(), head_step * item, row_step * item)
            place += 3
        plan.call[place] = out_1NHV.data_ptr()
        step = plan.table(layer.group)
        num_pairs = max(plan.batch.num_tokens * layer.group, SOME * plan.batch.num_segments)
        work = num_pairs * layer.num_kv_heads * plan.num_keys * (layer.key_dim + layer.value_dim)
        if work > PARALLEL_WORK and (num_threads := nb.get_num_threads()) > 1:
            attend_parallel(plan.call, plan.layers[layer.index], step, plan.scratch, num_threads)
        else:
            attend_serial(plan.call, plan.layers[layer.index], step, plan.scratch)
        return out_1NHV

    def _room(self, num_keys: int) -> NDArray[np.float32]:
        """float32 [threads, words], kept from step to step and grown by halves."""
        words = max(scratch_words(num_keys, spec.key_dim, spec.value_dim) for spec in self._specs)
        if self._scratch.shape[1] < words:
            self._scratch = np.zeros((nb.config.NUMBA_NUM_THREADS, words + words // 2), np.float32)
        return self._scratch


def warm_up() -> None:
    """Compile both kernels on nothing, or load them from numba's cache, so that no request has to wait."""
    nothing, floats = np.zeros((0, 7), np.int64), np.zeros(16, np.float32)
    numbers, places = np.zeros(0, np.int32), np.zeros(0, np.int64)
    step = StepTable(nothing, make_tiles(nothing, 1), numbers, places, numbers, places)
    call, table = np.zeros(10, np.int64), LayerTable(np.ones(10, np.int64), floats, COUNTING)
    attend_serial(call, table, step, floats.reshape(1, -1))
    attend_parallel(call, table, step, floats.reshape(1, -1), 1)


def _layer_table(spec: LayerSpec, store: KvStore) -> LayerTable:
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
    return LayerTable(integers, np.array([spec.scaling, spec.softcap, *sinks], np.float32), COUNTING)
