"""Spine trees (GOOSE): a deep chain copied from context, with branches from the adjacency table.

Owns what one request's drafting remembers: context index, beliefs, running spine acceptance. The tree
is grown best-first; the paper's own shape, Algorithm 1, is the ablation "best_first".
"""

from __future__ import annotations

import numpy as np

from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.harvest import harvest_prefill, harvest_tree, token_before_root
from decoding.drafting.sources import DraftingStores
from decoding.drafting.spine.growth import EVIDENCE, SpineSource, grow
from decoding.drafting.spine.paper_tree import SpineShape, build_spine_tree
from decoding.drafting.spine.priors import prior_chances
from decoding.drafting.tree.beliefs import learn, start_beliefs
from decoding.drafting.tree.growth import Growth, Limits, allocate, limits_of
from decoding.drafting.tree.nodes import to_tree
from decoding.stores.context import BY_LENGTHS, BY_OCCURRENCES, MAX_CHAIN, ContextIndex
from decoding.stores.successor_table import NUM_SUCCESSORS

ABLATIONS = ("branches", "bigram", "bypass", "context_match", "best_first")
CONSENSUS = {"lengths": BY_LENGTHS, "occurrences": BY_OCCURRENCES}

_INITIAL_ACCEPTANCE = 0.3
_SMOOTHING = 0.3
_BYPASS_SUFFIX = 8


class SpineDrafter:
    """GOOSE (sections 4.1 to 4.3) with its shape rules replaced by estimated chances.

    The default grows the tree best-first: a copied token's chance follows from the length of its match,
    consensus and the adjacency table's agreement, a successor's from its tier and stored probability;
    both are learned as the request runs. Spine ratio, harmonic widths, bypass and the tree of adjacency
    alone come out as cases. `without` leaves out "branches" (of copied nodes), "bigram", "context_match",
    "bypass" (all trust in long or unanimous matches: one rate for every copied token) or "best_first"
    (then Algorithm 1 with the paper's rules: ratio tiers by running acceptance, bypass to a chain).
    """

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, session: DraftingStores) -> None:
        self._request = request
        self._adjacency = session.adjacency
        self._index = ContextIndex(request.max_total)
        self._beliefs = start_beliefs(prior_chances())
        self._acceptance = _INITIAL_ACCEPTANCE
        self._before_root = -1
        self._allocate(17)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        harvest_prefill(self._adjacency, self._request, start, top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        self._before_root = token_before_root(self._request)
        if budget.max_nodes >= len(self._evidence):
            self._allocate(budget.max_nodes + 1)
        tokens, speculation = self._request.tokens, self._request.speculation
        self._index.extend(tokens)
        limits = limits_of(budget, speculation.max_depth)
        build = self._build if "best_first" in speculation.without else self._grow
        num_nodes = build(tokens, limits, speculation)
        return to_tree(self._buffers.nodes, num_nodes)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        learn(self._beliefs, tree.of_nodes(self._buffers.nodes.classes), tree, verdict)
        num_spine = int((tree.sources == Source.CONTEXT).sum())
        if num_spine:
            rate = float((tree.sources[verdict.path] == Source.CONTEXT).sum()) / num_spine
            self._acceptance += _SMOOTHING * (rate - self._acceptance)
        harvest_tree(self._adjacency, self._before_root, tree, top)

    def _allocate(self, num_nodes: int) -> None:
        self._buffers = allocate(num_nodes)
        self._evidence = np.zeros(num_nodes, EVIDENCE)

    def _grow(self, tokens: IntArray, limits: Limits, speculation: SpeculationParams) -> int:
        source = SpineSource(
            self._adjacency.arrays,
            self._index.arrays,
            self._evidence,
            consensus=CONSENSUS[speculation.consensus],
            use_bigram="bigram" not in speculation.without,
            use_context="context_match" not in speculation.without,
            use_confidence="bypass" not in speculation.without,
            use_spine_branches="branches" not in speculation.without,
        )
        return int(grow(Growth(tokens, self._beliefs.chances, limits, *self._buffers), source))

    def _build(self, tokens: IntArray, limits: Limits, speculation: SpeculationParams) -> int:
        """Algorithm 2's routing: a chain where the match is trusted, else Algorithm 1 at the tier's ratio."""
        match = self._index.match(tokens, max(limits.max_nodes, MAX_CHAIN))
        chain = match.chain[:MAX_CHAIN]
        spine_len = max(1, int(limits.max_nodes * spine_ratio(self._acceptance)))
        is_unanimous = match.by_lengths if speculation.consensus == "lengths" else match.by_occurrences
        if "bypass" not in speculation.without and (is_unanimous or match.suffix_len >= _BYPASS_SUFFIX):
            chain, spine_len = match.chain, limits.max_nodes
        if "context_match" in speculation.without:
            chain = chain[:0]
        shape = SpineShape(
            limits,
            spine_len,
            use_bigram="bigram" not in speculation.without,
            use_spine_branches="branches" not in speculation.without,
        )
        return int(build_spine_tree(self._adjacency.arrays, tokens, chain, self._buffers.nodes, shape))


def spine_ratio(acceptance: float) -> float:
    """The share of the budget on the spine, by running spine acceptance (GOOSE, table 5)."""
    if acceptance < 0.2:
        return 0.15
    return 0.30 if acceptance < 0.4 else 0.50
