"""Reference attention: each token alone, textbook softmax in float64, every feature. Slow and obviously right."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from decoding.attention.backend import visible_keys
from decoding.cache.batch import StepBatch
from decoding.core.layer import LayerSpec

# Shape suffixes: H query heads, K kv heads, N tokens and padding, T keys of a token, D key width, V value width.


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    batch: StepBatch
    write_slots_M: torch.Tensor


class ReferenceAttention:
    """Runs on any device, in any dtype."""

    def prepare(self, batch: StepBatch) -> ReferencePlan:
        batch.store.settle()
        return ReferencePlan(batch, torch.from_numpy(batch.write_slots_M))

    def attend(
        self,
        layer: LayerSpec,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KNV: torch.Tensor,
        plan: ReferencePlan,
    ) -> torch.Tensor:
        batch, store = plan.batch, plan.batch.store
        query_HND, key_KND, value_KNV = query_1HND[0], key_1KND[0], value_1KNV[0]
        slots_M = plan.write_slots_M.to(key_KND.device)
        store.write(layer.index, key_KND[:, : batch.num_tokens], value_KNV[:, : batch.num_tokens], slots_M)
        out_NHV = query_HND.new_zeros(query_HND.shape[1], query_HND.shape[0], layer.value_dim)
        for segment in range(batch.num_segments):
            first, end = batch.offsets[segment], batch.offsets[segment + 1]
            blocks = torch.from_numpy(batch.blocks(segment)).to(store.device, torch.int64)
            keys_KTD, values_KTV = store.gather(layer.index, blocks, batch.num_keys(segment))
            visible = torch.from_numpy(visible_keys(batch, segment, layer.window, layer.chunk)).to(keys_KTD.device)
            for row in range(first, end):
                is_seen = visible[row - first]
                out_NHV[row] = _attend_row(layer, query_HND[:, row], keys_KTD[:, is_seen], values_KTV[:, is_seen])
        return out_NHV[None]


def _attend_row(
    layer: LayerSpec, query_HD: torch.Tensor, keys_KTD: torch.Tensor, values_KTV: torch.Tensor
) -> torch.Tensor:
    """[H, V]: one token's result over exactly the keys that it sees."""
    keys_HTD = keys_KTD.double().repeat_interleave(layer.group, 0)
    values_HTV = values_KTV.double().repeat_interleave(layer.group, 0)
    scores_HT = torch.einsum("hd,htd->ht", query_HD.double(), keys_HTD) * layer.scaling
    if layer.softcap:
        scores_HT = layer.softcap * torch.tanh(scores_HT / layer.softcap)
    if layer.sinks is not None:
        scores_HT = torch.cat([layer.sinks.double()[:, None], scores_HT], dim=1)
    weights_HT = scores_HT.softmax(dim=1)[:, -keys_HTD.shape[1] :]
    return torch.einsum("ht,htv->hv", weights_HT, values_HTV).to(query_HD.dtype)
