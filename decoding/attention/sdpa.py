"""Attention through torch's scaled_dot_product_attention, one call per request.

Not exact: rounding depends on how many tokens a request has in the step.
Invariant: masks are built once per step and (window, chunk, group), never per layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from decoding.attention.backend import visible_keys
from decoding.cache.batch import StepBatch
from decoding.cache.block_pool import num_blocks_for
from decoding.core.layer import LayerSpec

# Shape suffixes: H query heads, K kv heads, G = H / K, N tokens and padding, M tokens, n tokens of one segment, T keys,
# X = G * n.


@dataclass(frozen=True, slots=True)
class SdpaPlan:
    """blocks: int64, the blocks of each segment's keys. masks: bool [G * n, T] by (segment, window, chunk, G), or None
    if every token sees every key."""

    batch: StepBatch
    write_slots_M: torch.Tensor
    blocks: tuple[torch.Tensor, ...]
    masks: dict[tuple[int, int, int, int], torch.Tensor | None] = field(default_factory=dict)


class SdpaAttention:
    """device: where the model runs. Indices and masks are copied to it without waiting."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def prepare(self, batch: StepBatch) -> SdpaPlan:
        batch.store.settle()
        write_slots_M = torch.from_numpy(batch.write_slots_M).to(self.device, non_blocking=True)
        blocks_T = torch.from_numpy(batch.blocks_T.astype(np.int64)).to(self.device, non_blocking=True)
        lengths = [num_blocks_for(batch.num_keys(segment)) for segment in range(batch.num_segments)]
        starts = batch.table_offsets.tolist()
        blocks = tuple(blocks_T[start : start + length] for start, length in zip(starts[:-1], lengths, strict=True))
        return SdpaPlan(batch, write_slots_M, blocks)

    def attend(
        self,
        layer: LayerSpec,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KNV: torch.Tensor,
        plan: SdpaPlan,
    ) -> torch.Tensor:
        num_tokens, store = plan.batch.num_tokens, plan.batch.store
        query_HND, key_KND, value_KNV = query_1HND[0], key_1KND[0], value_1KNV[0]
        store.write(layer.index, key_KND[:, :num_tokens], value_KNV[:, :num_tokens], plan.write_slots_M)
        out_NHV = query_HND.new_zeros(query_HND.shape[1], query_HND.shape[0], layer.value_dim)
        offsets = plan.batch.offsets.tolist()
        for segment, blocks in enumerate(plan.blocks):
            first, end = offsets[segment], offsets[segment + 1]
            keys_KTD, values_KTV = store.gather(layer.index, blocks, plan.batch.num_keys(segment))
            keys_KTD, values_KTV = keys_KTD.to(query_HND.dtype), values_KTV.to(query_HND.dtype)
            # The heads that share keys become extra rows, so keys are read once and never repeated.
            query_KXD = query_HND[:, first:end].reshape(layer.num_kv_heads, -1, layer.key_dim)
            mask = self._mask(layer, segment, plan)
            attend = _attend_plainly if layer.softcap or layer.sinks is not None else _attend_fused
            out_KXV = attend(layer, query_KXD, keys_KTD, values_KTV, mask)
            out_NHV[first:end] = out_KXV.view(layer.num_query_heads, end - first, -1).transpose(0, 1)
        return out_NHV[None]

    def _mask(self, layer: LayerSpec, segment: int, plan: SdpaPlan) -> torch.Tensor | None:
        key = (segment, layer.window, layer.chunk, layer.group)
        if key not in plan.masks:
            visible = visible_keys(plan.batch, segment, layer.window, layer.chunk)
            mask = None if visible.all() else torch.from_numpy(visible).repeat(layer.group, 1)
            plan.masks[key] = None if mask is None else mask.to(self.device, non_blocking=True)
        return plan.masks[key]


def _attend_fused(
    layer: LayerSpec,
    query_KXD: torch.Tensor,
    keys_KTD: torch.Tensor,
    values_KTV: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        query_KXD[None], keys_KTD[None], values_KTV[None], attn_mask=mask, scale=layer.scaling
    )[0]


def _attend_plainly(
    layer: LayerSpec,
    query_KXD: torch.Tensor,
    keys_KTD: torch.Tensor,
    values_KTV: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """Attend with soft-cap and sinks, which the fused call lacks; softmax in at least float32."""
    scores_KXT = query_KXD @ keys_KTD.transpose(1, 2) * layer.scaling
    if layer.softcap:
        scores_KXT = layer.softcap * torch.tanh(scores_KXT / layer.softcap)
    scores_KXT = scores_KXT.to(torch.promote_types(scores_KXT.dtype, torch.float32))
    if mask is not None:
        scores_KXT = scores_KXT.masked_fill(~mask, float("-inf"))
    num_sinks = 0
    if layer.sinks is not None:
        num_sinks = 1
        num_rows = query_KXD.shape[1] // layer.group
        sinks_KX1 = layer.sinks.to(scores_KXT.dtype).view(layer.num_kv_heads, layer.group, 1, 1)
        sinks_KX1 = sinks_KX1.expand(-1, -1, num_rows, -1).reshape(layer.num_kv_heads, -1, 1)
        scores_KXT = torch.cat([sinks_KX1, scores_KXT], dim=2)
    weights_KXT = scores_KXT.softmax(dim=2)[:, :, num_sinks:]
    return weights_KXT.to(values_KTV.dtype) @ values_KTV
