"""Attention over a step's tensors in plain torch operations of fixed shapes, which can be captured.

Each token is multiplied with as many keys as a request can have, then masked. Supports every feature and device, slow
for long contexts; the reference for kernels over `StepTensors`.
Invariant: nothing here depends on a number that the host has read.
"""

from __future__ import annotations

import numpy as np
import torch

from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.cache.kv_format import unpack_rows
from decoding.cache.step_tensors import StepBuffers, StepTensors, Work, WorkRoom, room_of
from decoding.core.layer import LayerSpec

# Shape suffixes: T padded tokens, K the most keys of a token, H query heads, G = H / kv heads, N kv heads, D key width,
# V value width.

NO_WORK = Work(np.empty(0, np.int32))


class PaddedAttention:
    """A `StaticAttention`."""

    def prepare(self, batch: StepBatch) -> StepTensors:
        room = room_of(batch, NO_WORK)._replace(logits=batch.num_tokens)
        return StepBuffers(batch.store, room).stage(batch, batch.num_tokens, NO_WORK)

    def share_out(self, _batch: StepBatch) -> Work:
        return NO_WORK

    def most_work(self, _num_rows: int, _most_keys: int) -> WorkRoom:
        return WorkRoom()

    def attend(
        self,
        layer: LayerSpec,
        query_1HTD: torch.Tensor,
        key_1NTD: torch.Tensor,
        value_1NTV: torch.Tensor,
        step: StepTensors,
    ) -> torch.Tensor:
        num_rows = len(step.ids_T)
        query_HTD, key_NTD, value_NTV = (each[0, :, :num_rows] for each in (query_1HTD, key_1NTD, value_1NTV))
        step.store.write(layer.index, key_NTD, value_NTV, step.slots_T.long())
        visible_TK, slots_TK = _keys(layer, step)
        keys_BNDS, values_BNSV = step.store.planes(layer.index)
        blocks_TK, places_TK = slots_TK // BLOCK_LEN, slots_TK % BLOCK_LEN
        wide = torch.promote_types(query_HTD.dtype, torch.float32)
        keys_TKND = unpack_rows(keys_BNDS[blocks_TK, :, :, places_TK], layer.key_dim).to(wide)
        values_TKNV = unpack_rows(values_BNSV[blocks_TK, :, places_TK], layer.value_dim).to(wide)
        values_TKNV = values_TKNV.masked_fill(~visible_TK[:, :, None, None], 0.0)  # unwritten slots may hold NaN
        query_TNGD = query_HTD.to(wide).transpose(0, 1).reshape(-1, layer.num_kv_heads, layer.group, layer.key_dim)
        scores_TNGK = torch.einsum("tngd,tknd->tngk", query_TNGD, keys_TKND) * layer.scaling
        weights_TNGK = _weights(layer, scores_TNGK, visible_TK[:, None, None])
        out_THV = torch.einsum("tngk,tknv->tngv", weights_TNGK, values_TKNV).flatten(1, 2).to(query_HTD.dtype)
        return torch.nn.functional.pad(out_THV, (0, 0, 0, 0, 0, query_1HTD.shape[2] - num_rows))[None]


def _keys(layer: LayerSpec, step: StepTensors) -> tuple[torch.Tensor, torch.Tensor]:
    """Which of its segment's keys each token sees, bool [T, K], and the keys' slots, int64 [T, K], arbitrary if
    unseen."""
    segments_T1 = step.row_segments_T.clamp(min=0).long()[:, None]
    rows_T1 = torch.arange(len(step.ids_T), device=segments_T1.device)[:, None]
    nodes_T1 = step.num_written_B[segments_T1] + rows_T1 - step.first_rows_B[segments_T1]
    keys_K = torch.arange(step.most_keys, device=segments_T1.device)
    tree_rows_TK, most = keys_K - step.lengths_B[segments_T1], len(step.enters_P) - 1
    in_tree_TK = (step.tree_offsets_B[segments_T1] + tree_rows_TK).clamp(0, most)
    own_T1 = step.enters_P[(step.tree_offsets_B[segments_T1] + nodes_T1).clamp(0, most)]
    is_ancestor_TK = (step.enters_P[in_tree_TK] <= own_T1) & (own_T1 < step.leaves_P[in_tree_TK])
    visible_TK = (tree_rows_TK < 0) | (is_ancestor_TK & (tree_rows_TK <= nodes_T1))
    visible_TK &= step.row_segments_T[:, None] >= 0
    positions_TK = torch.where(tree_rows_TK < 0, keys_K, step.tree_positions_P[in_tree_TK])
    if layer.window:
        visible_TK &= positions_TK > step.positions_T[:, None] - layer.window
    if layer.chunk:
        visible_TK &= positions_TK // layer.chunk == step.positions_T[:, None] // layer.chunk
    in_table_TK = (step.table_offsets_B[segments_T1] + keys_K // BLOCK_LEN).clamp(max=len(step.blocks_C) - 1)
    slots_TK = step.blocks_C[in_table_TK].long() * BLOCK_LEN + keys_K % BLOCK_LEN
    return visible_TK, slots_TK


def _weights(layer: LayerSpec, scores_TNGK: torch.Tensor, visible_T11K: torch.Tensor) -> torch.Tensor:
    """Softmax over the visible keys; zeros for a token that sees none."""
    if layer.softcap:
        scores_TNGK = layer.softcap * torch.tanh(scores_TNGK / layer.softcap)
    scores_TNGK = scores_TNGK.masked_fill(~visible_T11K, torch.finfo(scores_TNGK.dtype).min)
    if layer.sinks is not None:
        sinks_NG1 = layer.sinks.to(scores_TNGK.dtype).view(layer.num_kv_heads, layer.group, 1)
        sinks_TNG1 = sinks_NG1.expand(len(scores_TNGK), -1, -1, -1)
        scores_TNGK = torch.cat([scores_TNGK, sinks_TNG1], dim=3)
    weights_TNGK = scores_TNGK.softmax(dim=3)[..., : visible_T11K.shape[3]]
    return weights_TNGK.masked_fill(~visible_T11K, 0.0)
