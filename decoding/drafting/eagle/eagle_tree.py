"""EAGLE-2's tree, which EAGLE-3 and GTO keep: a beam grows depth by depth, then the likeliest of all its nodes stay.

Owns one request's tree under way. Knows no price: its forwards are always the same.
Invariant: a node comes after its parent and is never likelier, so the likeliest nodes are a tree.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.draft_model.state import DraftModelState, DraftRows
from decoding.drafting.tree.candidates import (
    COUPLED,
    Candidates,
    DraftLaw,
    allocate_candidates,
    draft_law,
    rank_candidates,
)

BEAM = 10  # nodes that grow on at each depth, and children of each
NUM_NODES = 59  # drafted ones; with the root the paper's 60
MOST_DEPTH = 8  # the paper's depth of 7 counts the forwards after the first
_ROOT: IntArray = np.zeros(1, np.int32)
_NOT_RUN = -1


class EagleDrafter:
    """One request's trees (EAGLE-2, section 4; Li et al., 2024).

    A child's chance is the head's probability; of a request that samples, its share given the noise its own draw will
    meet, which is EAGLE's rule carried over to drafts that are to equal what the target draws.
    """

    num_top = 0

    def __init__(self, request: Request, state: DraftModelState) -> None:
        self._request = request
        self._state = state
        state.grow_with(self)
        depth = request.speculation.max_depth
        self._most_depth = MOST_DEPTH if depth is None else depth
        self._law = draft_law(request.sampling, COUPLED)
        self._candidates = allocate_candidates(BEAM)
        self._is_under_way = False
        self._max_nodes = self._most_rows = self._deepest = 0
        self._tokens = self._parents = self._depths = self._rows = self._kept_rows = self._expanded = _ROOT
        self._scores: NDArray[np.float64] = np.zeros(1)
        self._row_parents: IntArray = _ROOT[:0]

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        pass

    def wants_model(self, budget: DraftBudget) -> bool:  # noqa: ARG002 - it has no other source
        return True

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        self._is_under_way = True
        self._max_nodes, self._most_rows = budget.max_nodes, most_rows
        self._deepest = min(self._most_depth, most_depth)
        self._tokens = np.array([self._request.tokens[-1]], np.int32)
        self._parents, self._rows = np.full(1, -1, np.int32), np.full(1, _NOT_RUN, np.int32)
        self._depths, self._scores = np.zeros(1, np.int32), np.zeros(1)
        self._expanded, self._row_parents = _ROOT, _ROOT[:0]

    def grow(self, top: TopTokens) -> DraftRows | None:
        first = len(self._tokens)
        self._add_children(top)
        self._expanded = self._best_of(first)
        if len(self._expanded) == 0:
            return None
        num_rows = len(self._row_parents)
        self._rows[self._expanded] = np.arange(num_rows, num_rows + len(self._expanded))
        parents = self._rows[self._parents[self._expanded]]  # the root's children follow the root itself: -1
        self._row_parents = np.concatenate((self._row_parents, parents))
        return DraftRows(self._tokens[self._expanded], self._row_parents)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The likeliest nodes; the root alone where the head was not up to date."""
        if not self._is_under_way:
            self._kept_rows = np.full(1, _NOT_RUN, np.int32)
            return root_only(int(self._request.tokens[-1]))
        self._is_under_way = False
        kept = np.sort(np.append(_ROOT, 1 + self._order()[: budget.max_nodes])).astype(np.int32)
        places = np.zeros(len(self._tokens), np.int32)
        places[kept] = np.arange(len(kept))
        parents = places[self._parents[kept]]
        parents[0] = -1
        sources = np.full(len(kept), Source.DRAFT_MODEL, np.int8)
        sources[0] = Source.ROOT
        self._kept_rows = self._rows[kept]
        return DraftTree(self._tokens[kept], parents, sources)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002 - asks for none
        path = verdict.path[1:]
        rows = tree.of_nodes(self._kept_rows)[path] if len(path) else path
        self._state.keep(rows[rows >= 0])

    def _add_children(self, top: TopTokens) -> None:
        """Give each expanded node the children that its row of `top` speaks for."""
        parents, candidates = self._expanded, self._candidates
        if self._max_nodes == 0 or self._depths[parents[0]] >= self._deepest:
            return
        position = self._request.num_tokens + int(self._depths[parents[0]])
        _rank_rows(Top(top.ids, top.probabilities), self._law, position, candidates)
        num_rows = len(top)
        chances = candidates.weights[:num_rows].astype(np.float64)
        if self._law.temperature == 0:
            chances *= top.probabilities.sum(axis=1, keepdims=True)  # shares are of the candidates alone
        is_known = np.arange(chances.shape[1]) < candidates.sizes[:num_rows, None]
        rows, ranks = np.nonzero(is_known & (chances > 0))
        added = parents[rows]
        self._tokens = np.append(self._tokens, candidates.ids[rows, ranks])
        self._parents = np.append(self._parents, added)
        self._depths = np.append(self._depths, self._depths[added] + np.int32(1))
        self._scores = np.append(self._scores, self._scores[added] + np.minimum(np.log(chances[rows, ranks]), 0.0))
        self._rows = np.append(self._rows, np.full(len(added), _NOT_RUN, np.int32))

    def _best_of(self, first: int) -> IntArray:
        """int32, ascending: the beam among the nodes from `first` on, but for those that too many others outdo."""
        if first == len(self._tokens) or self._depths[-1] >= self._deepest:
            return _ROOT[:0]
        order = 1 + self._order()[: self._max_nodes]
        room = min(BEAM, self._most_rows - len(self._row_parents))
        return np.sort(order[order >= first][:room]).astype(np.int32)

    def _order(self) -> NDArray[np.int64]:
        """The drafted nodes, likeliest first, of equals the earlier; counted without the root."""
        return np.argsort(-self._scores[1:], kind="stable")


@nb.njit(cache=True)
def _rank_rows(top: Top, law: DraftLaw, position: int, candidates: Candidates) -> None:
    """Fill in the candidates of every row of `top`, for children at `position`."""
    for row in range(len(top.ids)):
        rank_candidates(top, row, law, (row, position, position), candidates)
