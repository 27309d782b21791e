"""How far a block head's trees go along replies that the target has already given.

Knows nothing of time. Invariant: as of `acceptance`, whose sums it counts for.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.drafting.block.network import BlockHead, Correction
from decoding.drafting.block.shortlist import Shortlist
from decoding.training.heads.block.blocks import name_blocks
from decoding.training.heads.options import TreeShape
from decoding.training.heads.target import OnlineTarget
from decoding.training.heads.texts.answers import Answer

# Shape suffixes: T tokens of a text, F features of a token, A blocks, I places that a block names, R places of all
# blocks, S tokens of a shortlist, V the target's vocabulary.
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
        logits_AIV = head.logits(name_blocks(head, tokens_1T, features_1TF, roots_1A))[0, :, : shape.num_levels].float()
        num_places = logits_AIV.shape[1]
        said = Named(Shortlist.of(logits_AIV.flatten(0, 1)), head.markov_head, shape.top_k)
        for place, root in enumerate(roots_1A[0].tolist()):
            following = tokens[root : root + 1 + num_places].tolist()
            lengths.append(_depth_in_tree(said, range(place * num_places, (place + 1) * num_places), following, shape))
    return np.array(lengths, np.int64)


class Named:
    """What is said of each place after a token, looked up once. top_k: how many of the likeliest."""

    def __init__(self, said: Shortlist, correction: Correction | None, top_k: int) -> None:
        self._said, self._correction, self._top_k = said, correction, top_k
        self._found: dict[tuple[int, int], list[tuple[float, int]]] = {}

    def of(self, row: int, before: int) -> list[tuple[float, int]]:
        """Logarithms of chances, falling, and tokens."""
        key = (row, before if self._correction is not None else -1)
        if key not in self._found:
            ids_S, logits_S = self._said.ids_RS[row], self._said.logits_RS[row]
            if self._correction is not None:
                logits_S = logits_S + self._correction(torch.tensor(before, device=ids_S.device), ids_S)
            whole = torch.logaddexp(logits_S.logsumexp(-1), self._said.others_R[row])
            top = (logits_S - whole).topk(min(self._top_k, len(logits_S)))
            self._found[key] = list(zip(top.values.tolist(), ids_S[top.indices].tolist(), strict=True))
        return self._found[key]


class Candidate(NamedTuple):
    """A child of a path that ends with `before`, in falling order of the chance; cost: of its path, -log. is_text:
    whether that path is what came."""

    cost: float
    depth: int
    rank: int
    before: int
    is_text: bool


def _depth_in_tree(said: Named, rows: Sequence[int], following: list[int], shape: TreeShape) -> int:
    """How far the tree of the likeliest paths goes along what came. rows: of the places; following: the root and what
    came after it."""
    heap = [Candidate(-said.of(rows[0], following[0])[0][0], 0, 0, following[0], is_text=True)]
    found = 0
    for _ in range(shape.num_nodes):
        if not heap:
            break
        cost, depth, rank, before, is_text = heapq.heappop(heap)
        listed = said.of(rows[depth], before)
        chance, token = listed[rank]
        if rank + 1 < len(listed):
            heapq.heappush(heap, Candidate(cost + chance - listed[rank + 1][0], depth, rank + 1, before, is_text))
        is_text = is_text and depth + 1 < len(following) and following[depth + 1] == token
        found = max(found, depth + 1) if is_text else found
        if depth + 1 < len(rows):
            heapq.heappush(heap, Candidate(cost - said.of(rows[depth + 1], token)[0][0], depth + 1, 0, token, is_text))
    return found
