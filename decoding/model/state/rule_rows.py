"""The one recurrence that all families are: what a step's rows bring to it.

A head's state is a matrix of K keys by V values. A row decays it, corrects what its key finds there towards its value
(the delta rule) or adds its value under its key (Mamba), then reads it with its query:
    state *= decay;  value = (value - key @ state) * rate;  state += outer(key, value);  out = query @ state
Source: Gated DeltaNet (arXiv 2412.06464), Kimi Linear (2510.26692), Mamba (2312.00752), Mamba-2 (2405.21060).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

# Shape suffixes: N tokens and padding, H heads, G groups of heads that share keys, K key width, V value width.


class RuleRows(NamedTuple):
    """All float32 and contiguous. decay: [N, H, 1, 1], [N, H, K, 1] or [N, H, K, V]. rate: [N, H]; None where nothing
    is corrected."""

    query_NGK: torch.Tensor
    key_NGK: torch.Tensor
    value_NHV: torch.Tensor
    decay: torch.Tensor
    rate_NH: torch.Tensor | None

    def take(self, rows: torch.Tensor) -> RuleRows:
        """A copy of some rows. rows: int64."""
        return RuleRows(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


def delta_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    use_qk_l2norm_in_kernel: bool = False,
    **_: Any,
) -> RuleRows:
    """Of the gated delta rule, and of Kimi's, whose decay is of each key. Arguments as modelling code names them:
    [1, N, G, K] twice, [1, N, H, V], [1, N, H] or [1, N, H, K], [1, N, H]."""
    query_NGK, key_NGK = query[0].float(), key[0].float()
    if use_qk_l2norm_in_kernel:
        query_NGK, key_NGK = _unit(query_NGK), _unit(key_NGK)
    decay = g[0].float().exp()
    return RuleRows(
        (query_NGK * query_NGK.shape[-1] ** -0.5).contiguous(),
        key_NGK.contiguous(),
        value[0].float().contiguous(),
        (decay[:, :, None, None] if decay.dim() == 2 else decay[..., None]).contiguous(),
        beta[0].float().contiguous(),
    )


def _unit(numbers: torch.Tensor) -> torch.Tensor:
    return numbers * torch.rsqrt((numbers * numbers).sum(-1, keepdim=True) + 1e-6)


def mamba_2_rows(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    dt_bias: torch.Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **_: Any,
) -> RuleRows:
    """[1, N, H, V], [1, N, H], [H], [1, N, G, K] twice."""
    dt_NH = dt[0] if dt_bias is None else dt[0] + dt_bias.to(dt.dtype)
    dt_NH = (F.softplus(dt_NH) if dt_softplus else dt_NH).clamp(*dt_limit).float()
    return RuleRows(
        C[0].float().contiguous(),
        B[0].float().contiguous(),
        (hidden_states[0].float() * dt_NH[..., None]).contiguous(),
        (A.float() * dt_NH).exp()[:, :, None, None].contiguous(),
        None,
    )


def mamba_1_rows(
    hidden_states: torch.Tensor,
    dt: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    width: int,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    **_: Any,
) -> RuleRows:
    """[1, D, N] twice, [D, K], [1, K, N] twice; the D channels are cut into heads of `width`."""
    dt_DN = dt[0] if delta_bias is None else dt[0] + delta_bias.to(dt.dtype)[:, None]
    dt_DN = (F.softplus(dt_DN) if delta_softplus else dt_DN).float()
    num_channels, num_rows = dt_DN.shape
    heads = num_channels // width
    dt_NHV = dt_DN.T.reshape(num_rows, heads, width)
    hidden_NHV = hidden_states[0].T.float().reshape(num_rows, heads, width)
    a_HKV = A.float().view(heads, width, -1).transpose(1, 2)
    return RuleRows(
        C[0].T.float()[:, None].contiguous(),
        B[0].T.float()[:, None].contiguous(),
        (hidden_NHV * dt_NHV).contiguous(),
        (a_HKV * dt_NHV[:, :, None]).exp().contiguous(),
        None,
    )
