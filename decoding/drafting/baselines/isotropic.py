"""The isotropic control: a uniform k-ary tree filled from the adjacency table, blind to what is likely.

Owns the compiled builder and the drafter. Invariant: nodes are in breadth-first order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import DraftTree, Source
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import HarvestingDrafter
from decoding.drafting.tree.limits import Limits, limits_of
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root, to_tree
from decoding.kernels.numba_kernel import kernel
from decoding.stores.ngram import find_successors
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

_ADJACENCY = np.int64(Source.ADJACENCY)


class IsotropicDrafter(HarvestingDrafter):
    """Isotropic(k) of GOOSE, section 5.3: the spine's adjacency source, bigrams included, in a balanced tree.

    k is the request's `speculation.branching`; "bigram" in `speculation.without` leaves that tier out.
    """

    def propose(self, budget: DraftBudget) -> DraftTree:
        tokens, speculation = self.begin_tree(), self._request.speculation
        limits, uses_bigram = limits_of(budget, speculation.max_depth), "bigram" not in speculation.without
        shape = limits, speculation.branching, uses_bigram
        return to_tree(*build_isotropic_tree(self._ngrams.arrays, tokens, *shape))


@kernel
def build_isotropic_tree(
    table: SuccessorArrays, tokens: NDArray[np.int32], limits: Limits, branching: int, use_bigram: bool
) -> tuple[Nodes, int]:
    """A tree filled breadth-first with the `branching` best successors of each node; how many there are, root
    included."""
    nodes = allocate(limits.max_nodes + 1)
    put_root(nodes, tokens[len(tokens) - 1])
    before_root = tokens[len(tokens) - 2] if len(tokens) > 1 else NO_TOKEN
    num_nodes = 1
    node = 0
    while node < num_nodes and num_nodes <= limits.max_nodes:
        if nodes.depths[node] < limits.max_depth:
            before = nodes.tokens[nodes.parents[node]] if node > 0 else before_root
            entry, _ = find_successors(table, before, nodes.tokens[node], use_bigram)
            for rank in range(min(branching, NUM_SUCCESSORS)):
                if entry < 0 or table.ids[entry, rank] == NO_TOKEN or num_nodes > limits.max_nodes:
                    break
                score = table.probabilities[entry, rank]
                put_node(nodes, num_nodes, node, table.ids[entry, rank], _ADJACENCY, score)
                num_nodes += 1
        node += 1
    return nodes, num_nodes
