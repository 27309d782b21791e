"""How far a block head's trees go along replies that the target has already given.

Knows nothing of time. Invariant: as of `acceptance`, whose sums it counts for.
"""

from __future__ import annotations

import heapq

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.drafting.block.network import BlockHead
from decoding.training.heads.answers import Answer
from decoding.training.heads.block.blocks import name_blocks
from decoding.training.heads.options import TreeShape
from decoding.training.heads.target import OnlineTarget

# Shape suffixes: T tokens of a text, F features of a token, A blocks, I places that a block names, K children, V the
# target's vocabulary.
BLOCKS_AT_ONCE = 32


@torch.no_grad()
def accepted_in_blocks(head: BlockHead, target: OnlineTarget, answer: Answer, shape: TreeShape) -> NDArray[np.int64]:
    """int64 [t]: the accepted length of the tree after each token of the reply except the last, best-first by the
    product of what is said of each depth (DDTree)."""
    device, tokens = head.fc.weight.device, answer.tokens.astype(np.int64)
    with target.reading([answer.tokens]) as (reading,):
        features_1TF = reading.features_TF[None].to(device)
    tokens_1T, lengths = torch.from_numpy(tokens)[None].to(device), []
    for first in range(answer.num_prompt, len(tokens) - 1, BLOCKS_AT_ONCE):
        roots_1A = torch.arange(first, min(first + BLOCKS_AT_ONCE, len(tokens) - 1), device=device)[None]
        logits_AIV = head.logits(name_blocks(head, tokens_1T, features_1TF, roots_1A))[0].float()
        top = logits_AIV.log_softmax(-1)[:, : shape.num_levels].topk(shape.top_k)
        for root, chances_IK, ids_IK in zip(
            roots_1A[0].tolist(), top.values.tolist(), top.indices.tolist(), strict=True
        ):
            ranks = []
            for ids_K, token in zip(ids_IK, tokens[root + 1 :].tolist(), strict=False):
                if token not in ids_K:
                    break
                ranks.append(ids_K.index(token))
            lengths.append(_depth_in_tree(chances_IK, tuple(ranks), shape.num_nodes))
    return np.array(lengths, np.int64)


def _depth_in_tree(chances_IK: list[list[float]], ranks: tuple[int, ...], num_nodes: int) -> int:
    """How far the tree of the likeliest paths holds the path of these ranks. chances_IK: log, falling in each depth."""
    heap: list[tuple[float, tuple[int, ...]]] = [(-chances_IK[0][0], (0,))]
    found = 0
    for _ in range(num_nodes):
        if not heap:
            break
        cost, path = heapq.heappop(heap)
        depth, rank = len(path) - 1, path[-1]
        if path == ranks[: len(path)]:
            found = len(path)
        if rank + 1 < len(chances_IK[depth]):
            sibling = cost + chances_IK[depth][rank] - chances_IK[depth][rank + 1]
            heapq.heappush(heap, (sibling, (*path[:-1], rank + 1)))
        if depth + 1 < len(chances_IK):
            heapq.heappush(heap, (cost - chances_IK[depth + 1][0], (*path, 0)))
    return found
