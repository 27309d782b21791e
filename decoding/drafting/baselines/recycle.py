"""Token Recycling: a fixed tree filled from the last successors seen of each token.

Owns the drafter. The tree is the published one of 80 nodes, "2.2.2", ordered so that its first nodes are its best; it
comes with STAND, which drafts along it by default.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import HarvestingDrafter
from decoding.drafting.stand.static_tree import shipped_tree
from decoding.drafting.tree.limits import Limits, limits_of
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root, to_tree
from decoding.kernels.numba_kernel import kernel
from decoding.stores.ngram import find_successors
from decoding.stores.session import Session
from decoding.stores.successor_table import NO_TOKEN, SuccessorArrays

_ADJACENCY = np.int64(Source.ADJACENCY)


class RecycleDrafter(HarvestingDrafter):
    """Token Recycling (Luo et al., 2025): unigram successors of every row, rejected ones too, in tree "2.2.2".

    Warm across the requests of a session, as the published code is across prompts; unlike it, the prompt's
    rows are harvested too, and a token never seen drafts nothing instead of token 0.
    """

    def __init__(self, request: Request, session: Session) -> None:
        super().__init__(request, session.ngrams)
        self._template = shipped_tree("general").arrays()

    def propose(self, budget: DraftBudget) -> DraftTree:
        root, limits = int(self.begin_tree()[-1]), limits_of(budget, self._request.speculation.max_depth)
        return to_tree(*fill_template(self._ngrams.arrays, root, limits, *self._template))


@kernel
def fill_template(
    table: SuccessorArrays, root: int, limits: Limits, parents: NDArray[np.int32], ranks: NDArray[np.int32]
) -> tuple[Nodes, int]:
    """A tree along the template, without what is unknown or too deep; how many nodes there are, root included."""
    nodes = allocate(len(parents))
    put_root(nodes, root)
    places = np.full(len(parents), -1, np.int32)
    entries = np.full(len(nodes.tokens), -1, np.int32)
    places[0] = 0
    entries[0], _ = find_successors(table, NO_TOKEN, root, False)
    num_nodes = 1
    for slot in range(1, len(parents)):
        parent = places[parents[slot]]
        if num_nodes > limits.max_nodes:
            break
        if parent < 0 or entries[parent] < 0 or nodes.depths[parent] >= limits.max_depth:
            continue
        token = table.ids[entries[parent], ranks[slot]]
        if token != NO_TOKEN:
            score = table.probabilities[entries[parent], ranks[slot]]
            put_node(nodes, num_nodes, parent, token, _ADJACENCY, score)
            places[slot] = num_nodes
            entries[num_nodes], _ = find_successors(table, NO_TOKEN, token, False)
            num_nodes += 1
    return nodes, num_nodes
