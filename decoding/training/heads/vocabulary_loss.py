"""Cross-entropy over the draft vocabulary, which keeps no logits: gradients are made with them, some rows at a time.

Knows nothing of steps. Invariant: memory is bounded by `ROWS` rows of logits, however many there are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

ROWS = 4096
# Shape suffixes: R rows, E width, W draft vocabulary, T tokens of a pack.


def vocabulary_loss(
    hidden_RE: Tensor, output_WE: Tensor, wanted_TW: Tensor, rows_R: Tensor, factors_R: Tensor
) -> tuple[Tensor, Tensor]:
    """The sum of `factors_R` times each row's cross-entropy with row `rows_R` of `wanted_TW`; and, without gradient,
    the sum of those factors where both have the same likeliest token.

    Products are in the type of `wanted_TW`, sums in float32. factors_R: float32, no gradient.
    """
    loss, agreed = _VocabularyLoss.apply(  # type: ignore[no-untyped-call]
        hidden_RE, output_WE, wanted_TW, rows_R, factors_R
    )
    return loss, agreed


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_RE: Tensor, output_WE: Tensor, wanted_TW: Tensor, rows_R: Tensor, factors_R: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = wanted_TW.dtype
        weights_WE, grad_WE = output_WE.to(dtype), torch.zeros_like(output_WE, dtype=torch.float32)
        grads, loss, agreed = [], factors_R.new_zeros(()), factors_R.new_zeros(())
        with torch.autocast(hidden_RE.device.type, enabled=False):
            for first in range(0, len(hidden_RE), ROWS):
                some = slice(first, first + ROWS)
                part_RE, factor_R = hidden_RE[some].to(dtype), factors_R[some]
                wanted_RW = wanted_TW[rows_R[some]].float()
                log_q = (part_RE @ weights_WE.T).float().log_softmax(-1)
                loss -= ((wanted_RW * log_q).sum(-1) * factor_R).sum()
                agreed += ((log_q.argmax(-1) == wanted_RW.argmax(-1)) * factor_R).sum()
                slope_RW = log_q.exp_().mul_(wanted_RW.sum(-1, keepdim=True)).sub_(wanted_RW)
                slope_RW = slope_RW.mul_(factor_R[:, None]).to(dtype)
                grads.append(slope_RW @ weights_WE)
                grad_WE += (slope_RW.T @ part_RE).float()
        ctx.save_for_backward(torch.cat(grads), grad_WE)
        ctx.dtypes = hidden_RE.dtype, output_WE.dtype
        ctx.mark_non_differentiable(agreed)
        return loss, agreed

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        grad_RE, grad_WE = ctx.saved_tensors
        of_hidden, of_output = ctx.dtypes
        return (grad_RE * grad).to(of_hidden), (grad_WE * grad).to(of_output), None, None, None
