"""Attention of neighbouring tokens of a prompt that see each other in both directions, as a picture's do in Gemma 3.

Plain torch operations over the store, after a backend has attended to what is before each token and has stored all of
the step's keys and values. Invariant: such tokens are all in one step, and are computed apart from its others, in
shapes that their places alone say, so that they have the same bits in every step.
"""

from __future__ import annotations

import torch

from decoding.cache.batch import JointTokens, StepBatch
from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.layer import LayerSpec

# Shape suffixes: H query heads, K kv heads, G = H / K, N tokens of the step and padding, R these tokens, D key width, V
# value width, T keys.


def attend_jointly(
    layer: LayerSpec, query_1HND: torch.Tensor, batch: StepBatch, tokens: JointTokens, out_1NHV: torch.Tensor
) -> None:
    """Overwrite the result for these tokens. Each sees all keys before their end, within the layer's window."""
    segment, (begin, num_keys, num_rows) = tokens.segment, (tokens.span.first, tokens.span.end, tokens.span.length)
    first = int(batch.offsets[segment]) + begin - int(batch.prefix_lens[segment])
    own = slice(first, first + num_rows)
    assert own.stop <= batch.offsets[segment + 1], (tokens, batch.offsets)
    first_block = max(0, begin - layer.window + 1) // BLOCK_LEN if layer.window else 0
    first_key = first_block * BLOCK_LEN
    store = batch.store
    blocks = torch.from_numpy(batch.blocks(segment)[first_block:]).to(store.device, torch.int64)
    keys_KTD, values_KTV = (each.float() for each in store.gather(layer.index, blocks, num_keys - first_key))
    query_HRD = query_1HND[0, :, own].float()
    scores_KGRT = _by_group(query_HRD, layer) @ keys_KTD[:, None].mT * layer.scaling
    if layer.softcap:
        scores_KGRT = layer.softcap * torch.tanh(scores_KGRT / layer.softcap)
    if layer.window:
        places_T = torch.arange(first_key, num_keys, device=store.device)
        own_R1 = torch.arange(begin, num_keys, device=store.device)[:, None]
        scores_KGRT = scores_KGRT.masked_fill(places_T <= own_R1 - layer.window, float("-inf"))
    out_KGRV = scores_KGRT.softmax(-1) @ values_KTV[:, None]
    out_1NHV[0, own] = out_KGRV.flatten(0, 1).transpose(0, 1).to(out_1NHV.dtype)


def _by_group(query_HRD: torch.Tensor, layer: LayerSpec) -> torch.Tensor:
    """[K, G, R, D], of its own."""
    return query_HRD.reshape(layer.num_kv_heads, layer.group, *query_HRD.shape[1:]).contiguous()
