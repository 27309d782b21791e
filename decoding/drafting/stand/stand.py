"""STAND: stochastic n-gram drafting, its candidates drawn with the target's own noise.

Owns what one request's drafting remembers: its buffers and the rates its evidence has proved. The tree is grown
best-first; the paper's own static tree is the ablation "best_first".
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.fields import check_field, one_of
from decoding.drafting.harvest import teach_prompt, teach_tree
from decoding.drafting.sources import DraftingStores
from decoding.drafting.stand.growth import NgramSource, allocate_ngram_buffers, fill_tree
from decoding.drafting.stand.priors import prior_chances
from decoding.drafting.stand.static_tree import StaticTree, shipped_tree
from decoding.drafting.tree.beliefs import learn, start_beliefs
from decoding.drafting.tree.candidates import CANDIDATES, draft_law, laws_of
from decoding.drafting.tree.growth import Growth, allocate, limits_of
from decoding.drafting.tree.nodes import to_tree
from decoding.stores.successor_table import NUM_SUCCESSORS

ABLATIONS = ("best_first", "refill")
MATCH, REJECTION = "match", "rejection"

_ROOT_ALONE = (np.full(1, -1, np.int32), np.zeros(1, np.int32))


class StandDrafter:
    """STAND (section 4): look-up from 4-grams down, children by Gumbel-top-k, every row harvested.

    A node's candidates are ranked by log q plus the request's own noise at their position, the very noise the
    target's token is drawn with, so that what q and p agree on is drafted first. The default grows the tree
    best-first by each candidate's chance given that noise. `without` leaves out "best_first" (then the static tree
    of the paper, cut to the budget, its slots without a candidate filled best-first) and "refill" (then those slots
    stay empty). tree: a static tree to draft along whatever the request says.

    Where verification is by rejection the tree is static and its empty slots stay empty, candidates are drawn
    independently, and none is left out for being unlikely: whether a draw is tested may not depend on it.
    """

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, session: DraftingStores, tree: StaticTree | None = None) -> None:
        self._request = request
        self._ngrams = session.ngrams
        speculation = request.speculation
        self._rejects = speculation.verification == REJECTION and request.sampling.temperature > 0
        order = CANDIDATES[speculation.candidates or ("independent" if self._rejects else "coupled")]
        self._law = draft_law(request.sampling, order)
        self._beliefs = start_beliefs(prior_chances(request.sampling.temperature, order))
        is_static = tree is not None or self._rejects or "best_first" in speculation.without
        self._slots = (tree.arrays() if tree else _shipped_arrays()) if is_static else _ROOT_ALONE
        self._refill = "refill" not in speculation.without and not self._rejects
        self._num_tokens = 0
        self._allocate(16)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._ngrams, self._request.tokens, start, top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        if budget.max_nodes >= len(self._ngram_buffers.slots):
            self._allocate(budget.max_nodes + 1)
        self._num_tokens = self._request.num_tokens
        limits = limits_of(budget, self._request.speculation.max_depth)
        if self._rejects:
            limits = limits._replace(min_chance=0.0)
        source = NgramSource(self._ngrams.arrays, self._law, *self._slots, self._refill, self._ngram_buffers)
        growth = Growth(self._request.tokens, self._beliefs.chances, limits, *self._buffers)
        num_nodes = int(fill_tree(growth, source))
        tree = to_tree(self._buffers.nodes, num_nodes)
        return replace(tree, draws=laws_of(self._ngram_buffers.candidates, num_nodes)) if self._rejects else tree

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        learn(self._beliefs, tree.of_nodes(self._buffers.nodes.classes), tree, verdict)
        if top is not None:
            self._teach(tree, verdict, top)

    def _allocate(self, num_nodes: int) -> None:
        self._buffers = allocate(num_nodes)
        self._ngram_buffers = allocate_ngram_buffers(num_nodes)

    def _teach(self, tree: DraftTree, verdict: Verdict, top: TopTokens) -> None:
        teach_tree(self._ngrams, self._request.tokens[: self._num_tokens], tree, verdict, top)

    def slots_of(self, verdict: Verdict) -> list[int]:
        """The static tree's slots on the path just accepted, root left out; -1 for nodes outside it."""
        return [int(self._ngram_buffers.slots[node]) for node in verdict.path[1:]]


def check(speculation: SpeculationParams) -> None:
    """Raise RequestRejected for a way of drawing or verifying that there is not, or not together."""
    verification, candidates = speculation.verification, speculation.candidates
    check_field("verification", verification in (MATCH, REJECTION), one_of(MATCH, REJECTION), verification)
    is_fit = verification == MATCH or speculation.method == "stand"
    check_field("verification", is_fit, f"{MATCH} where the method is not stand", verification)
    check_field("candidates", candidates in (None, *CANDIDATES), one_of(*CANDIDATES), candidates)
    is_fit = verification == MATCH or candidates in (None, "independent")
    check_field("candidates", is_fit, f"independent where verification is {REJECTION}", candidates)


@cache
def _shipped_arrays() -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return shipped_tree("general").arrays()
