"""Grows draft trees at many rows at once, as EAGLE-2 does while decoding, and merges trees into forests.

Owns shapes and tokens. Knows nothing of targets. Invariant: a node's parent comes before it; -1 is the root, which is
the token that the head was given at the row and is not a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from decoding.drafting.eagle.network import EagleHead
from decoding.training.heads.options import TreeShape
from decoding.training.heads.roll import Context, log_probabilities, roll, start

# Shape suffixes: P rows that trees are grown after, L nodes of a tree, C candidates of a tree, K frontier nodes.


@dataclass(frozen=True, slots=True)
class Trees:
    """tokens_PL: int64, in the target's vocabulary. parents_PL: int64, -1 for children of the root."""

    tokens_PL: NDArray[np.int64]
    parents_PL: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Candidates:
    """All that a tree may be chosen from, parents first. tokens_PC, parents_PC: as of `Trees`. scores_PC: the head's
    log probability of the path to each."""

    tokens_PC: Tensor
    parents_PC: Tensor
    scores_PC: Tensor

    def best(self, num_nodes: int, scores_PC: Tensor | None = None) -> Trees:
        """The trees of the highest scores, by default the head's own; of equal ones the earlier, so that every node has
        its parent. scores_PC: falling along paths."""
        scores_PC = self.scores_PC if scores_PC is None else scores_PC
        order_PC = scores_PC.sort(stable=True, dim=1, descending=True).indices
        kept_PL = order_PC[:, :num_nodes].sort(1).values
        places_PC = torch.full_like(self.parents_PC, -1)
        places_PC.scatter_(1, kept_PL, torch.arange(kept_PL.shape[1], device=kept_PL.device).expand_as(kept_PL))
        parents_PL = self.parents_PC.gather(1, kept_PL)
        parents_PL = torch.where(parents_PL < 0, parents_PL, places_PC.gather(1, parents_PL.clamp(min=0)))
        return Trees(self.tokens_PC.gather(1, kept_PL).cpu().numpy(), parents_PL.cpu().numpy())


def grow(head: EagleHead, context: Context, rows_P: Tensor, shape: TreeShape) -> Trees:
    """Grow the trees after some rows of one sequence."""
    return candidates(head, context, rows_P, shape).best(shape.num_nodes)


@torch.no_grad()
def candidates(head: EagleHead, context: Context, rows_P: Tensor, shape: TreeShape) -> Candidates:
    """At each depth the most likely nodes of all are expanded."""
    target_ids_W, way = head.target_ids, start(context, rows_P[None])
    scores_PK, ids_PK = log_probabilities(head, way.hidden_BRE)[0].topk(min(shape.top_k, len(target_ids_W)))
    width = ids_PK.shape[1]
    tokens_PK, parents_PK = target_ids_W[ids_PK], torch.full_like(ids_PK, -1)
    pool = [(tokens_PK, parents_PK, scores_PK)]
    frontier_PK = torch.arange(width, device=rows_P.device).expand_as(ids_PK)  # the numbers of these candidates
    way_of_PK = torch.arange(len(rows_P), device=rows_P.device)[:, None].expand_as(ids_PK)
    num_candidates = width
    for _ in range(shape.num_levels - 1):
        way = roll(head, context, way.pick(way_of_PK.reshape(1, -1)), tokens_PK.reshape(1, -1))
        log_q, ids = log_probabilities(head, way.hidden_BRE)[0].topk(width)
        scores_PKK = scores_PK[..., None] + log_q.view(*scores_PK.shape, width)
        tokens_PC = target_ids_W[ids].view(len(rows_P), -1)
        pool.append((tokens_PC, frontier_PK.repeat_interleave(width, 1), scores_PKK.flatten(1)))
        scores_PK, best_PK = scores_PKK.flatten(1).topk(width)
        tokens_PK, frontier_PK = tokens_PC.gather(1, best_PK), best_PK + num_candidates
        way_of_PK = best_PK // width + width * torch.arange(len(rows_P), device=rows_P.device)[:, None]
        num_candidates += width * width
    return Candidates(*(torch.cat(each, 1) for each in zip(*pool, strict=True)))


@dataclass(frozen=True, slots=True)
class Forest:
    """Several trees after one row, merged so that common paths appear once.

    tokens, parents: int64 [n]. places: for each tree, int64 [L], the forest's node for each of its nodes.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    places: tuple[NDArray[np.int64], ...]

    @property
    def inner(self) -> NDArray[np.int64]:
        """The nodes with children, ascending. The target runs only these."""
        return np.unique(self.parents[self.parents >= 0])


def merge(trees: tuple[Trees, ...], row: int) -> Forest:
    """The forest of all trees after one row."""
    nodes: dict[tuple[int, int], int] = {}
    places = []
    for each in trees:
        place = np.empty(each.tokens_PL.shape[1], np.int64)
        pairs = zip(each.tokens_PL[row].tolist(), each.parents_PL[row].tolist(), strict=True)
        for node, (token, parent) in enumerate(pairs):
            key = (int(place[parent]) if parent >= 0 else -1, token)
            place[node] = nodes.setdefault(key, len(nodes))
        places.append(place)
    pairs_of = np.array(list(nodes), np.int64).reshape(-1, 2)
    return Forest(pairs_of[:, 1], pairs_of[:, 0], tuple(places))
