"""STAND's own trees: a static tree filled from the n-gram store, candidates drawn with the target's own noise.

Owns what one request's drafting remembers, and the compiled builder. Trees that are grown by estimated chances instead
are `one_tree`'s. Invariant: a node's children are its first candidates, none left out, in index order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoding.core.request import Request
from decoding.core.tree import DraftTree, IntArray, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import HarvestingDrafter
from decoding.drafting.stand.static_tree import StaticTree, shipped_tree
from decoding.drafting.tree.candidates import (
    CANDIDATES,
    Candidates,
    DraftLaw,
    allocate_candidates,
    draft_law,
    laws_of,
    rank_candidates,
)
from decoding.drafting.tree.limits import Limits, limits_of
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root, to_tree
from decoding.kernels.numba_kernel import kernel
from decoding.stores.ngram import LONGEST_NGRAM, find_longest, path_context
from decoding.stores.session import Session
from decoding.stores.successor_table import SuccessorArrays

MATCH, REJECTION = "match", "rejection"
_NGRAM = np.int64(Source.NGRAM)


class StandDrafter(HarvestingDrafter):
    """STAND (section 4): look-up from 4-grams down, children by Gumbel-top-k, every row harvested.

    A node's candidates are ranked by log q plus the request's own noise at their position, the very noise the
    target's token is drawn with, so that what q and p agree on is drafted first. The static tree is cut to the
    budget; slots without a candidate stay empty. tree: to draft along instead of the shipped one. Where verification
    is by rejection candidates are drawn independently.
    """

    def __init__(self, request: Request, session: Session, tree: StaticTree | None = None) -> None:
        super().__init__(request, session.ngrams)
        speculation = request.speculation
        self._rejects = speculation.verification == REJECTION and request.sampling.temperature > 0
        order = CANDIDATES[speculation.candidates or ("independent" if self._rejects else "coupled")]
        self._law = draft_law(request.sampling, order)
        self._tree = (tree or shipped_tree("general")).arrays()
        self._slots: IntArray = np.zeros(1, np.int32)  # of the static tree, that the nodes proposed last were put in

    def propose(self, budget: DraftBudget) -> DraftTree:
        tokens, limits = self.begin_tree(), limits_of(budget, self._request.speculation.max_depth)
        nodes, candidates, self._slots = fill_tree(self._ngrams.arrays, tokens, limits, self._law, self._tree)
        tree = to_tree(nodes, len(self._slots))
        return replace(tree, draws=laws_of(candidates, len(tree))) if self._rejects else tree

    def slots_of(self, verdict: Verdict) -> list[int]:
        """The static tree's slots on the path just accepted, root left out."""
        return [int(slot) for slot in self._slots[verdict.path[1:]]]


@kernel
def fill_tree(
    table: SuccessorArrays, tokens: IntArray, limits: Limits, law: DraftLaw, static: tuple[IntArray, IntArray]
) -> tuple[Nodes, Candidates, IntArray]:
    """Take the static tree's slots in order, leaving out those that have no candidate: the nodes, what may follow each,
    and int32 [n] its own slot, of as many as there are. static: parents and ranks, of which a node's lower ones come
    first."""
    parents, ranks = static
    room = min(len(parents), limits.max_nodes + 1)
    nodes, candidates, slots = allocate(room), allocate_candidates(room), np.zeros(room, np.int32)
    places, context = np.full(room, -1, np.int32), np.empty(LONGEST_NGRAM, np.int32)
    num_nodes = 0
    for slot in range(room):
        if slot == 0:
            put_root(nodes, tokens[len(tokens) - 1])
        else:
            parent, rank = places[parents[slot]], ranks[slot]
            if parent < 0 or nodes.depths[parent] >= limits.max_depth or rank >= candidates.sizes[parent]:
                continue
            put_node(nodes, num_nodes, parent, candidates.ids[parent, rank], _NGRAM, 1.0)
        places[slot], slots[num_nodes] = num_nodes, slot
        path_context(tokens, nodes.tokens, nodes.parents, num_nodes, context)
        entry, _ = find_longest(table, context)
        place = (num_nodes, len(tokens) + nodes.depths[num_nodes], len(tokens))
        rank_candidates(table, entry, law, place, candidates)
        num_nodes += 1
    return nodes, candidates, slots[:num_nodes]
