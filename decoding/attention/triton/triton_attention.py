"""Attention by the Triton kernels: three launches per layer, which read the step from its tensors on the device.

Invariant: grids and sizes depend only on the padded number of tokens, the buffers' room, the layer and the device, so
that a captured forward serves every step of its bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from decoding.attention.triton.constants import constants_of, kind_of
from decoding.attention.triton.tiles import Tile, tile_of
from decoding.attention.triton.work import ALL_PARTIALS, EXACT_ROWS, MOST_PARTIALS, most_work, share_out
from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_store import KvStore
from decoding.cache.step_tensors import StepBuffers, StepRoom, StepTensors, Work, WorkRoom, room_of
from decoding.core.layer import LayerSpec
from decoding.kernels.gpu.attention import Results, Step, attend_tiles
from decoding.kernels.gpu.card import num_processors
from decoding.kernels.gpu.kv_rows import store_rows
from decoding.kernels.gpu.merge import merge_ranges

# Shape suffixes: H query heads, K kv heads, N tokens and padding, D key width, V value width, B blocks, S slots of a
# block, P partial sums.
PROGRAMS_EACH = 2  # Triton programs for each of the device's multiprocessors
INTERPRETED_PROGRAMS = 3
AT_ONCE = 8  # partial sums of a range that are read before they are added up
NO_ROOM = StepRoom(0, 0, 0, 0, 0)


class TritonAttention:
    """A `StaticAttention`, on a CUDA device, or on the CPU if Triton interprets its kernels.

    dtype: of the model and its store. tiles: one for each layer; None takes those that suit the device. is_exact: cut a
    long prompt's keys where any other token's are cut, which takes room for more partial sums.
    """

    def __init__(
        self,
        layers: Sequence[LayerSpec],
        dtype: torch.dtype,
        device: torch.device,
        tiles: Sequence[Tile] | None = None,
        is_exact: bool = False,
    ) -> None:
        tiles = tiles or [tile_of(layer, dtype, device) for layer in layers]
        self._kinds = list(dict.fromkeys(kind_of(layer, tile) for layer, tile in zip(layers, tiles, strict=True)))
        self._constants = [constants_of(layer, tile, self._kinds) for layer, tile in zip(layers, tiles, strict=True)]
        self._most_partials = ALL_PARTIALS if is_exact else MOST_PARTIALS
        processors = num_processors(device)
        self._num_programs = INTERPRETED_PROGRAMS if processors is None else PROGRAMS_EACH * processors
        self._at_once = 1 if processors is None else AT_ONCE
        self._store: KvStore | None = None
        self._buffers: StepBuffers | None = None

    def prepare(self, batch: StepBatch) -> StepTensors:
        """Start the copy of a step to the device, into buffers that grow when a step does not fit."""
        work = self.share_out(batch)
        if self._buffers is None or self._store is not batch.store or not self._buffers.room.holds(batch, work):
            self._store, self._buffers = batch.store, StepBuffers(batch.store, self._grown(room_of(batch, work)))
        return self._buffers.stage(batch, batch.num_tokens, work)

    def _grown(self, needed: StepRoom) -> StepRoom:
        """Room for a step and, so that buffers seldom grow, for one that is twice as long in what had no room."""
        before = NO_ROOM if self._buffers is None else self._buffers.room
        rows, logits, tree_rows, blocks, keys = map(_doubled, needed[:-1], before[:-1])
        return StepRoom(rows, logits, tree_rows, blocks, keys, WorkRoom(*map(_doubled, needed.work, before.work)))

    def share_out(self, batch: StepBatch) -> Work:
        """Tiles and ranges."""
        return share_out(batch, self._kinds, self._most_partials)

    def most_work(self, num_rows: int, most_keys: int) -> WorkRoom:
        return most_work(num_rows, most_keys, self._kinds, self._most_partials)

    def attend(
        self,
        layer: LayerSpec,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KNV: torch.Tensor,
        step: StepTensors,
    ) -> torch.Tensor:
        with torch.cuda.device(query_1HND.get_device()):  # where Triton launches; -1, a CPU's, changes nothing
            self._store_rows(layer, key_1KND[0], value_1KNV[0], step)
            return self.attend_stored(layer, query_1HND[0], step)[None]

    def _store_rows(self, layer: LayerSpec, key_KND: torch.Tensor, value_KNV: torch.Tensor, step: StepTensors) -> None:
        key_KND, value_KNV = _side_by_side(key_KND), _side_by_side(value_KNV)
        keys_BKDS, values_BKSV = step.store.planes(layer.index)
        num_rows = len(step.ids_T)
        store_rows[(-(-num_rows // BLOCK_LEN), layer.num_kv_heads)](
            keys_BKDS,
            values_BKSV,
            key_KND,
            value_KNV,
            step.slots_T,
            num_rows,
            *key_KND.stride()[:2],
            *value_KNV.stride()[:2],
            **self._constants[layer.index].store,
        )

    def attend_stored(self, layer: LayerSpec, query_HND: torch.Tensor, step: StepTensors) -> torch.Tensor:
        """[N, H, V]: attention to keys and values that are stored, those of the step as well. On a GPU that the caller
        has made torch's current one."""
        query_HND, constants = _side_by_side(query_HND), self._constants[layer.index]
        keys_BKDS, values_BKSV = step.store.planes(layer.index)
        out_NHV = query_HND.new_empty(query_HND.shape[1], layer.num_query_heads, layer.value_dim)
        sums_PHV = out_NHV.new_empty(step.num_partials, *out_NHV.shape[1:], dtype=torch.float32)
        stats_PH2 = out_NHV.new_empty(step.num_partials, layer.num_query_heads, 2, dtype=torch.float32)
        for size in constants.attend:
            if size["HAS_MANY"] and len(out_NHV) <= EXACT_ROWS:
                continue
            attend_tiles[(self._num_programs,)](
                query_HND,
                keys_BKDS,
                values_BKSV,
                query_HND if layer.sinks is None else layer.sinks,
                Results(out_NHV, sums_PHV, stats_PH2),
                Step(step.positions_T, step.blocks_C, step.work_W),
                len(step.blocks_C),
                *query_HND.stride()[:2],
                layer.scaling if layer.softcap else layer.scaling * math.log2(math.e),
                **size,
            )
        merge_ranges[(len(out_NHV), layer.num_query_heads)](
            out_NHV, sums_PHV, stats_PH2, step.work_W, AT_ONCE=self._at_once, **constants.merge
        )  # fmt: skip
        return out_NHV


def _doubled(needed: int, before: int) -> int:
    return max(2, before) if needed <= before else 2 * needed


def _side_by_side(rows: torch.Tensor) -> torch.Tensor:
    """[heads, tokens, width] with the numbers of a head contiguous."""
    return rows if rows.stride(2) == 1 else rows.contiguous()
