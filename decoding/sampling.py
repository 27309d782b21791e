"""Logits to the target's own token at every row: argmax(log p + g), the one sampler of drafted and plain replies.

p is the row's processed distribution: temperature, then top-k, top-p (over what top-k kept) and min-p;
ties go to the smaller id. g is `noise`, absent at temperature 0. A row's token depends on that row alone.
On the CPU `sampling_kernel` does it; `reference_choose` says the same in tensors, for tests and other devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.drafters.base import TopTokens
from decoding.noise import gumbel_rows
from decoding.request import Request
from decoding.sampling_kernel import UNREACHED, choose_rows, top_rows
from decoding.tree import DraftTree

__all__ = [
    "UNREACHED",
    "SampleRows",
    "TreeRows",
    "ban",
    "choose",
    "reference_choose",
    "sample_rows",
    "top_tokens",
]

# N rows of the step's logits, R of them to be drawn, V vocabulary


@dataclass(frozen=True, slots=True)
class TreeRows:
    """One request's tree among the step's logits: node i is logits row `first_row + i`."""

    request: Request
    tree: DraftTree
    first_row: int


@dataclass(frozen=True, slots=True)
class SampleRows:
    """How to draw each row: float64 temperature, top_p, min_p; int64 row, top_k, position; uint64 seed; all [R].

    row is the row of the logits, position the absolute position of the token to be drawn. token (int32) is
    the row's own token and parent (int32) the entry before it in its tree, -1 at a root: an entry whose
    parent's chosen token is another one is never reached by the walk, so the CPU path does not draw it and
    leaves UNREACHED.
    """

    row: NDArray[np.int64]
    temperature: NDArray[np.float64]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]
    token: NDArray[np.int32]
    parent: NDArray[np.int32]


def sample_rows(trees: Sequence[TreeRows], positions_N: NDArray[np.int64]) -> SampleRows:
    """The rows of all trees, one after the other. positions_N: the absolute position of each logits row."""
    sizes = [len(part.tree) for part in trees]
    params = [part.request.sampling for part in trees]
    row = np.concatenate([np.arange(part.first_row, part.first_row + len(part.tree)) for part in trees])
    starts = np.cumsum([0, *sizes[:-1]])
    parent = np.concatenate([part.tree.parents for part in trees])
    if len(trees) > 1:
        parent = np.where(parent >= 0, parent + np.repeat(starts, sizes), -1).astype(np.int32)
    return SampleRows(
        row=row,
        temperature=np.repeat([float(asked.temperature) for asked in params], sizes),
        top_k=np.repeat([asked.top_k for asked in params], sizes),
        top_p=np.repeat([float(asked.top_p) for asked in params], sizes),
        min_p=np.repeat([float(asked.min_p) for asked in params], sizes),
        seed=np.repeat(np.array([asked.seed for asked in params], np.uint64), sizes),
        position=positions_N[row] + 1,
        token=np.concatenate([part.tree.tokens for part in trees]),
        parent=parent,
    )


def choose(logits_NV: torch.Tensor, rows: SampleRows) -> NDArray[np.int32]:
    """int32 [R]: the target's own token after every row a walk can reach. logits_NV: float32, contiguous."""
    if logits_NV.device.type != "cpu":
        return reference_choose(logits_NV, rows)
    chosen = np.empty(len(rows.row), np.int32)
    choose_rows(
        logits_NV.numpy(),
        rows.row,
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.seed,
        rows.position,
        rows.token,
        rows.parent,
        chosen,
    )
    return chosen


def top_tokens(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """The `num_top` most likely tokens of every row with their probabilities at temperature 1."""
    num_top = min(num_top, logits_RV.shape[1])
    if logits_RV.device.type != "cpu":
        log_norm = torch.logsumexp(logits_RV, dim=-1, keepdim=True)
        best = torch.topk(logits_RV, num_top, dim=-1)
        return TopTokens(best.indices.int().cpu().numpy(), (best.values - log_norm).exp().cpu().numpy())
    ids = np.empty((len(logits_RV), num_top), np.int32)
    probabilities = np.empty((len(logits_RV), num_top), np.float32)
    top_rows(logits_RV.numpy(), ids, probabilities)
    return TopTokens(ids, probabilities)


def ban(logits_NV: torch.Tensor, part: TreeRows, depths: NDArray[np.int32]) -> None:
    """Give the stop tokens no chance, in place, at every node whose token would come before min_tokens."""
    request = part.request
    early = np.flatnonzero(request.num_output + depths < request.sampling.min_tokens) + part.first_row
    if len(early) and request.stop_ids:
        stop_ids = torch.tensor(sorted(request.stop_ids), device=logits_NV.device)
        logits_NV[torch.from_numpy(early).to(logits_NV.device)[:, None], stop_ids] = -math.inf


def reference_choose(logits_NV: torch.Tensor, rows: SampleRows) -> NDArray[np.int32]:
    """`choose` in plain tensor operations, any device, every row drawn."""
    device = logits_NV.device
    logits_RV = logits_NV[torch.from_numpy(rows.row).to(device)]
    greedy_R = torch.from_numpy(rows.temperature).to(device) == 0
    temperature_R = torch.from_numpy(rows.temperature).to(device).masked_fill(greedy_R, 1.0)
    scaled_RV = logits_RV.double() / temperature_R[:, None]
    scaled_RV -= scaled_RV.max(dim=-1, keepdim=True).values
    order_RV = torch.sort(scaled_RV, dim=-1, descending=True, stable=True)
    sorted_RV = order_RV.values
    rank_V = torch.arange(sorted_RV.shape[1], device=device)
    top_k_R = torch.from_numpy(rows.top_k).to(device)
    beyond_k_RV = (rank_V[None, :] >= top_k_R[:, None]) & (top_k_R > 0)[:, None]
    weights_RV = sorted_RV.exp().masked_fill(beyond_k_RV, 0.0)
    top_p_R = torch.from_numpy(rows.top_p).to(device)
    before_RV = weights_RV.cumsum(-1) - weights_RV  # mass of the more likely tokens
    beyond_p_RV = (before_RV >= (top_p_R * weights_RV.sum(-1))[:, None]) & (top_p_R < 1)[:, None]
    min_p_R = torch.from_numpy(rows.min_p).to(device)
    dropped_RV = beyond_k_RV | beyond_p_RV | (sorted_RV < min_p_R.log()[:, None])
    kept_RV = torch.zeros_like(dropped_RV).scatter_(1, order_RV.indices, ~dropped_RV)
    seeds = torch.from_numpy(rows.seed.view(np.int64)).to(device)
    noise_RV = gumbel_rows(seeds, torch.from_numpy(rows.position).to(device), logits_RV.shape[1])
    noisy_RV = (scaled_RV + noise_RV).masked_fill(~kept_RV, -math.inf)
    chosen_R = torch.where(greedy_R, logits_RV.argmax(-1), noisy_RV.argmax(-1))
    return chosen_R.int().cpu().numpy()
