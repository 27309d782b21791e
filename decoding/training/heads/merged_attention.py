"""Attention of rolled rows over a whole pack: the texts' first-step keys by the flash kernel, their own keys beside it.

Knows nothing of heads. One softmax runs over both parts: the parts are merged by their log sums, and the flash kernel's
own backward is right for the merged result, since it reads probabilities as exp(score - log sum).
Invariant: a row sees its text's keys up to the row that it started from, and its own at each rolled step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decoding.training.heads.texts.packs import IntArray

# Shape suffixes: T tokens of a pack, R rolled rows, A texts, L tokens of the longest, H query heads, K kv heads,
# G query heads per kv head, D head width, I rolled steps.
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Padding:
    """Texts of a pack side by side, as the flash kernel wants them; all else runs on packed rows. slots_T: int64, the
    place of each token among [A * L]."""

    num_texts: int
    longest: int
    slots_T: Tensor

    @classmethod
    def of(cls, texts_T: IntArray, offsets_T: IntArray, device: torch.device) -> Padding:
        longest = int(offsets_T.max()) + 1
        slots_T = torch.from_numpy(texts_T * np.int64(longest) + offsets_T).to(device)
        return cls(int(texts_T[-1]) + 1, longest, slots_T)

    def pad(self, rows_RHD: Tensor, slots_R: Tensor) -> Tensor:
        """[A, H, L, D], zeros where there is no row."""
        flat = rows_RHD.new_zeros((self.num_texts * self.longest, *rows_RHD.shape[1:]))
        flat = flat.index_copy(0, slots_R, rows_RHD)
        return flat.view(self.num_texts, self.longest, *rows_RHD.shape[1:]).transpose(1, 2)


def causal(queries_THD: Tensor, keys_AHLD: Tensor, values_AHLD: Tensor, padding: Padding) -> Tensor:
    """[T, H, D]: each token's attention over its text up to itself."""
    padded_AHLD = padding.pad(queries_THD, padding.slots_T)
    found_AHLD = functional.scaled_dot_product_attention(padded_AHLD, keys_AHLD, values_AHLD, is_causal=True)
    return found_AHLD.transpose(1, 2).flatten(0, 1)[padding.slots_T]


def merged(
    queries_RHD: Tensor,
    shared: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    padding: Padding,
    slots_R: Tensor,
) -> Tensor:
    """[R, H, D]. shared: keys and values [A, H, L, D]; own: of each rolled step, [I, R, K, D]. slots_R: of the rows'
    starts."""
    found: Tensor = _Merged.apply(queries_RHD, *shared, *own, padding, slots_R)  # type: ignore[no-untyped-call]
    return found


class _Merged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries_RHD: Tensor,
        keys_AHLD: Tensor,
        values_AHLD: Tensor,
        own_keys_IRKD: Tensor,
        own_values_IRKD: Tensor,
        padding: Padding,
        slots_R: Tensor,
    ) -> Tensor:
        padded_AHLD = padding.pad(queries_RHD, slots_R)
        out_AHLD, sums_AHL, state = _flash(padded_AHLD, keys_AHLD, values_AHLD)
        shared_RHD = out_AHLD.transpose(1, 2).flatten(0, 1)[slots_R].float()
        shared_RH = sums_AHL.transpose(1, 2).flatten(0, 1)[slots_R]
        scores_IRH = _own_scores(queries_RHD, own_keys_IRKD)
        sums_RH = torch.logaddexp(shared_RH, scores_IRH.logsumexp(0))
        found_RHD = shared_RHD * (shared_RH - sums_RH).exp()[..., None]
        found_RHD += _mix((scores_IRH - sums_RH).exp(), own_values_IRKD)
        found_RHD = found_RHD.to(queries_RHD.dtype)
        saved = (queries_RHD, keys_AHLD, values_AHLD, own_keys_IRKD, own_values_IRKD, found_RHD, sums_RH, sums_AHL)
        ctx.save_for_backward(*saved, slots_R)
        ctx.padding, ctx.state = padding, state
        return found_RHD

    @staticmethod
    def backward(ctx: Any, grad_RHD: Tensor) -> Any:
        *saved, sums_RH, sums_AHL, slots_R = ctx.saved_tensors
        queries_RHD, keys_AHLD, values_AHLD, own_keys_IRKD, own_values_IRKD, found_RHD = saved
        padding: Padding = ctx.padding
        padded = [padding.pad(each, slots_R) for each in (grad_RHD.to(found_RHD.dtype), queries_RHD, found_RHD)]
        flat_RH = sums_AHL.transpose(1, 2).flatten(0, 1).index_copy(0, slots_R, sums_RH)
        merged_AHL = flat_RH.view(padding.num_texts, padding.longest, -1).transpose(1, 2).contiguous()
        grads = _flash_backward(padded[0], padded[1], keys_AHLD, values_AHLD, padded[2], merged_AHL, ctx.state)
        grad_q_RHD = grads[0].transpose(1, 2).flatten(0, 1)[slots_R].float()
        share_IRH = (_own_scores(queries_RHD, own_keys_IRKD) - sums_RH).exp()
        heads_RKGD = _grouped(grad_RHD.float(), own_keys_IRKD)
        dot_IRH = torch.einsum("rkgd,irkd->irkg", heads_RKGD, own_values_IRKD.float()).flatten(2)
        inner_RH = (grad_RHD.float() * found_RHD.float()).sum(-1)
        slope_IRH = share_IRH * (dot_IRH - inner_RH) * queries_RHD.shape[-1] ** -0.5
        grad_q_RHD += _mix(slope_IRH, own_keys_IRKD)
        grad_own_keys = _spread(slope_IRH, _grouped(queries_RHD.float(), own_keys_IRKD))
        grad_own_values = _spread(share_IRH, heads_RKGD)
        dtype = queries_RHD.dtype
        return grad_q_RHD.to(dtype), grads[1], grads[2], grad_own_keys.to(dtype), grad_own_values.to(dtype), None, None


def _grouped(rows_RHD: Tensor, own_IRKD: Tensor) -> Tensor:
    """[R, K, G, D]."""
    return rows_RHD.reshape(len(rows_RHD), own_IRKD.shape[2], -1, rows_RHD.shape[2])


def _own_scores(queries_RHD: Tensor, own_keys_IRKD: Tensor) -> Tensor:
    """float32 [I, R, H]: scaled."""
    grouped_RKGD = _grouped(queries_RHD.float(), own_keys_IRKD) * queries_RHD.shape[-1] ** -0.5
    return torch.einsum("rkgd,irkd->irkg", grouped_RKGD, own_keys_IRKD.float()).flatten(2)


def _mix(weights_IRH: Tensor, rows_IRKD: Tensor) -> Tensor:
    """float32 [R, H, D]: the weighted sums over steps."""
    weights_IRKG = weights_IRH.reshape(*rows_IRKD.shape[:3], -1)
    return torch.einsum("irkg,irkd->rkgd", weights_IRKG, rows_IRKD.float()).flatten(1, 2)


def _spread(weights_IRH: Tensor, rows_RKGD: Tensor) -> Tensor:
    """float32 [I, R, K, D]: the weighted sums over the query heads of a group."""
    weights_IRKG = weights_IRH.reshape(len(weights_IRH), *rows_RKGD.shape[:3])
    return torch.einsum("irkg,rkgd->irkd", weights_IRKG, rows_RKGD)


def _flash(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, tuple[Any, ...]]:
    """Causal attention, the log sums of its scores, float32 [A, H, L], and what the backward wants besides."""
    if queries.device.type == "cpu":
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(queries, keys, values, 0.0, True)
        return out, sums.float(), ()
    out, sums, *state, _ = aten._scaled_dot_product_flash_attention(queries, keys, values, 0.0, True, False)
    return out, sums, tuple(state)


def _flash_backward(
    grad: Tensor, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, sums: Tensor, state: tuple[Any, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values. sums: of all scores, also of those that the kernel never saw."""
    inputs = (grad, queries, keys, values, out, sums)
    if queries.device.type == "cpu":
        found = aten._scaled_dot_product_flash_attention_for_cpu_backward(*inputs, 0.0, True)
    else:
        *bounds, seed, offset = state
        found = aten._scaled_dot_product_flash_attention_backward(*inputs, *bounds, 0.0, True, seed, offset)
    grads: tuple[Tensor, Tensor, Tensor] = found
    return grads
