"""Logits to the target's own token at every row: argmax(log p + g), the one sampler of drafted and plain replies.

p is the row's processed distribution: temperature, then top-k, top-p (over what top-k kept) and min-p;
ties go to the smaller id. g is `noise`, absent at temperature 0. A row's token depends on that row alone, and
for a request with a `processing` on what comes before it on its path.
On the CPU `sampling_kernel` does it; `reference_choose` says the same in tensors, for tests and other devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray
from decoding.sampling.kernel import UNREACHED, choose_rows, top_rows
from decoding.sampling.logits_processors import Processing
from decoding.sampling.noise import gumbel_rows
from decoding.sampling.rejection import choose_by_rejection

__all__ = ["UNREACHED", "TreeRows", "choose", "reference_choose", "top_tokens"]

# N rows of the step's logits, R of them in trees, B trees, V vocabulary

SETTINGS = np.dtype(  # one tree's part of the kernel's work; position: of the token drawn after the root
    [
        ("first_row", np.int64),
        ("num_nodes", np.int64),
        ("position", np.int64),
        ("seed", np.uint64),
        ("top_k", np.int64),
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("min_p", np.float64),
    ]
)


@dataclass(frozen=True, slots=True)
class TreeRows:
    """One request's tree among the step's logits: node i is logits row `first_row + i`.

    processing: what is done to the logits first, its state that of the root; None for nothing.
    """

    request: Request
    tree: DraftTree
    first_row: int
    processing: Processing | None = None

    @property
    def is_plain(self) -> bool:
        return self.tree.draws is None and self.processing is None


def choose(logits_NV: torch.Tensor, trees: Sequence[TreeRows]) -> list[IntArray]:
    """Per tree int32 [n]: the token after each node, UNREACHED where no walk can come.

    It is the target's own, but for trees that bring their `draws`: those are verified by rejection.
    """
    plain = [part for part in trees if part.is_plain]
    chosen = iter(_choose_own(logits_NV, plain) if plain else [])
    return [next(chosen) if part.is_plain else _choose_on_path(logits_NV, part) for part in trees]


def _choose_on_path(logits_NV: torch.Tensor, part: TreeRows) -> IntArray:
    """`choose` for one tree that is verified by rejection, or whose rows depend on the path before them."""
    rows_RV = logits_NV[part.first_row : part.first_row + len(part.tree)].cpu().numpy()
    if part.tree.draws is None:
        return _choose_processed(rows_RV, part)
    return choose_by_rejection(rows_RV, part.tree, part.request, part.processing)


def _choose_processed(rows_RV: NDArray[np.float32], part: TreeRows) -> IntArray:
    """int32 [n]: the target's own token after each node of the accepted path, UNREACHED elsewhere.

    A row is processed when the walk comes to it, and its node noted, so rows off the path cost nothing.
    """
    assert part.processing is not None
    tree, chosen = part.tree, np.full(len(part.tree), UNREACHED, np.int32)
    settings_B = np.array([_settings(part)], SETTINGS)
    settings_B["first_row"], settings_B["num_nodes"] = 0, 1
    node = 0
    while True:
        row = part.processing.row(rows_RV[node])
        choose_rows(row[None], settings_B, tree.tokens[:1], tree.parents[:1], chosen[node : node + 1])
        children = np.flatnonzero((tree.parents == node) & (tree.tokens == chosen[node]))
        if len(children) == 0:
            return chosen
        node = int(children[0])
        part.processing.note(int(tree.tokens[node]))
        settings_B["position"] += 1


def _choose_own(logits_NV: torch.Tensor, trees: Sequence[TreeRows]) -> list[IntArray]:
    """Per tree int32 [n]: the target's own token after each node, UNREACHED where no walk can come.

    logits_NV: float32, contiguous. A node whose token is not the one drawn after its parent is never reached,
    so sampling costs the accepted path, not the tree.
    """
    if logits_NV.device.type != "cpu":
        return reference_choose(logits_NV, trees)
    settings_B = np.array([_settings(part) for part in trees], SETTINGS)
    tokens_R = _join([part.tree.tokens for part in trees])
    parents_R = _join([part.tree.parents for part in trees])
    chosen_R = np.empty(len(tokens_R), np.int32)
    choose_rows(logits_NV.numpy(), settings_B, tokens_R, parents_R, chosen_R)
    return _split(chosen_R, trees)


def _settings(part: TreeRows) -> tuple[int | float, ...]:
    asked = part.request.sampling
    position = part.request.num_tokens
    law = (asked.temperature, asked.top_p, asked.min_p)
    return part.first_row, len(part.tree), position, asked.seed, asked.top_k, *law


def _join(arrays: list[IntArray]) -> IntArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _split(rows_R: IntArray, trees: Sequence[TreeRows]) -> list[IntArray]:
    ends = list(accumulate(len(part.tree) for part in trees))
    return [rows_R[end - len(part.tree) : end] for part, end in zip(trees, ends, strict=True)]


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


def reference_choose(logits_NV: torch.Tensor, trees: Sequence[TreeRows]) -> list[IntArray]:
    """`choose` in plain tensor operations, any device, every node drawn."""
    device = logits_NV.device
    sizes = [len(part.tree) for part in trees]
    settings_R = np.repeat(np.array([_settings(part) for part in trees], SETTINGS), sizes)

    def column_R1(name: str) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(settings_R[name])).to(device)[:, None]

    rows_R = np.concatenate([np.arange(part.first_row, part.first_row + len(part.tree)) for part in trees])
    logits_RV = logits_NV[torch.from_numpy(rows_R).to(device)]
    greedy_R1 = column_R1("temperature") == 0
    scaled_RV = logits_RV.double() / column_R1("temperature").masked_fill(greedy_R1, 1.0)
    scaled_RV -= scaled_RV.max(dim=-1, keepdim=True).values
    sorted_RV, order_RV = torch.sort(scaled_RV, dim=-1, descending=True, stable=True)
    rank_V = torch.arange(sorted_RV.shape[1], device=device)
    beyond_k_RV = (rank_V >= column_R1("top_k")) & (column_R1("top_k") > 0)
    weights_RV = sorted_RV.exp().masked_fill(beyond_k_RV, 0.0)
    before_RV = weights_RV.cumsum(-1) - weights_RV  # mass of the more likely tokens
    needed_R1 = column_R1("top_p") * weights_RV.sum(-1, keepdim=True)
    beyond_p_RV = (before_RV >= needed_R1) & (column_R1("top_p") < 1)
    dropped_RV = beyond_k_RV | beyond_p_RV | (sorted_RV < column_R1("min_p").log())
    kept_RV = torch.zeros_like(dropped_RV).scatter_(1, order_RV, ~dropped_RV)
    depths_R = torch.from_numpy(_join([part.tree.depths() for part in trees])).to(device)
    seeds_R = torch.from_numpy(settings_R["seed"].astype(np.uint64).view(np.int64)).to(device)
    noise_RV = gumbel_rows(seeds_R, column_R1("position")[:, 0] + depths_R, logits_RV.shape[1])
    noisy_RV = (scaled_RV + noise_RV).masked_fill(~kept_RV, -math.inf)
    chosen_R = torch.where(greedy_R1[:, 0], logits_RV.argmax(-1), noisy_RV.argmax(-1))
    return _split(chosen_R.int().cpu().numpy(), trees)
