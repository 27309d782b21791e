"""GOOSE's own spine trees: a deep chain copied from context, with branches of successors, shaped by the paper's rules.

Owns what one request's drafting remembers, context index and running spine acceptance, and Algorithm 1, compiled. Trees
that are grown by estimated chances instead are `one_tree`'s.
Invariant: the budget counts every drafted node, spine and branches alike, and is never exceeded.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import HarvestingDrafter
from decoding.drafting.tree.limits import Limits, limits_of
from decoding.drafting.tree.nodes import Nodes, allocate, put_node, put_root, to_tree
from decoding.kernels.numba_kernel import kernel
from decoding.stores.context import BY_LENGTHS, BY_OCCURRENCES, MAX_CHAIN, ContextIndex
from decoding.stores.ngram import find_successors
from decoding.stores.session import Session
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

ABLATIONS = ("branches", "bigram", "bypass", "context_match")
CONSENSUS = {"lengths": BY_LENGTHS, "occurrences": BY_OCCURRENCES}

_INITIAL_ACCEPTANCE = 0.3
_SMOOTHING = 0.3
_BYPASS_SUFFIX = 8

MIN_SCORE = 0.01
BRANCH_DEPTH = 6  # the paper's D, edges from a branch's own start
SPINE_SHARE = 0.5  # the paper's rho: what spine nodes' branches get of the nodes that are not spine
_NO_SKIP = -2  # equals no token
_CONTEXT, _ADJACENCY = np.int64(Source.CONTEXT), np.int64(Source.ADJACENCY)


class SpineDrafter(HarvestingDrafter):
    """GOOSE (sections 4.1 to 4.3): Algorithm 1 with ratio tiers by running acceptance, bypass to a chain.

    `without` leaves out "branches" (of copied nodes), "bigram", "context_match" or "bypass".
    """

    def __init__(self, request: Request, session: Session) -> None:
        super().__init__(request, session.ngrams)
        self._index = ContextIndex(request.max_total)
        self._acceptance = _INITIAL_ACCEPTANCE

    def propose(self, budget: DraftBudget) -> DraftTree:
        """Algorithm 2's routing: a chain where the match is trusted, else Algorithm 1 at the tier's ratio."""
        tokens, speculation = self.begin_tree(), self._request.speculation
        self._index.extend(tokens)
        limits = limits_of(budget, speculation.max_depth)
        match = self._index.match(tokens, max(limits.max_nodes, MAX_CHAIN))
        chain = match.chain[:MAX_CHAIN]
        spine_len = max(1, int(limits.max_nodes * spine_ratio(self._acceptance)))
        is_unanimous = match.by_lengths if speculation.consensus == "lengths" else match.by_occurrences
        if "bypass" not in speculation.without and (is_unanimous or match.suffix_len >= _BYPASS_SUFFIX):
            chain, spine_len = match.chain, limits.max_nodes
        if "context_match" in speculation.without:
            chain = chain[:0]
        uses_bigram, branches_spine = "bigram" not in speculation.without, "branches" not in speculation.without
        spine_len = min(spine_len, len(chain), limits.max_nodes, limits.max_depth)
        before_root = int(tokens[-2]) if len(tokens) > 1 else NO_TOKEN
        shape = SpineShape(chain, before_root, limits, spine_len, uses_bigram, branches_spine)
        return to_tree(*build_spine_tree(self._ngrams.arrays, int(tokens[-1]), shape))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        num_spine = int((tree.sources == Source.CONTEXT).sum())
        if num_spine:
            rate = float((tree.sources[verdict.path] == Source.CONTEXT).sum()) / num_spine
            self._acceptance += _SMOOTHING * (rate - self._acceptance)
        super().observe(tree, verdict, top)


def spine_ratio(acceptance: float) -> float:
    """The share of the budget on the spine, by running spine acceptance (GOOSE, table 5)."""
    if acceptance < 0.2:
        return 0.15
    return 0.30 if acceptance < 0.4 else 0.50


class SpineShape(NamedTuple):
    """chain: int32, the copied continuation, maybe longer than the spine: what branches leave of the budget goes to it.
    before_root: the token before the root, -1 for none; spine_len: nodes copied before branches get theirs;
    use_spine_branches: successors of copied nodes."""

    chain: IntArray
    before_root: int
    limits: Limits
    spine_len: int
    use_bigram: bool
    use_spine_branches: bool


@kernel
def build_spine_tree(table: SuccessorArrays, root: int, shape: SpineShape) -> tuple[Nodes, int]:
    """A tree by Algorithm 1 (appendix B.1), and how many nodes it has, root included. A branch's score is its share
    among siblings."""
    max_nodes, max_depth, spine_len = shape.limits.max_nodes, shape.limits.max_depth, shape.spine_len
    nodes = allocate(max_nodes + 1)
    put_root(nodes, root)
    num_nodes = _copy(nodes, 1, 0, shape.chain[:spine_len])  # step 1: the spine
    rest = max_nodes - spine_len
    spine_rest = int(rest * SPINE_SHARE) if spine_len > 0 and shape.use_spine_branches else 0
    num_nodes = _attach(table, nodes, num_nodes, 0, rest - spine_rest, shape)  # step 2
    num_nodes = _branch_spine(table, nodes, num_nodes, spine_rest, shape)
    num_nodes = _extend(table, nodes, num_nodes, shape)
    end = min(max_depth, spine_len + max_nodes + 1 - num_nodes)
    return nodes, _copy(nodes, num_nodes, spine_len, shape.chain[spine_len:end])


@kernel(borrows=True)
def _copy(nodes: Nodes, num_nodes: int, last: int, chain: IntArray) -> int:
    """Put a chain below node `last`; the new number of nodes, as of all below."""
    for token in chain:
        put_node(nodes, num_nodes, last, token, _CONTEXT, 1.0)
        last = num_nodes
        num_nodes += 1
    return num_nodes


@kernel(borrows=True)
def _branch_spine(table: SuccessorArrays, nodes: Nodes, num_nodes: int, share: int, shape: SpineShape) -> int:
    """Step 3: `share` nodes for the spine's branches, by the harmonic rule, at least one each."""
    harmonic = 0.0
    for step in range(1, shape.spine_len + 1):
        harmonic += 1.0 / step
    end = num_nodes + share
    for step in range(1, shape.spine_len + 1):
        width = min(end - num_nodes, max(1, int(share / step / harmonic)))
        num_nodes = _attach(table, nodes, num_nodes, step, width, shape)
    return num_nodes


@kernel
def _extend(table: SuccessorArrays, nodes: Nodes, num_nodes: int, shape: SpineShape) -> int:
    """Step 4: breadth-first, each branch node takes children in proportion to its score among its siblings."""
    most_nodes = shape.limits.max_nodes + 1
    branch_depths = np.zeros(most_nodes, np.int32)
    node = shape.spine_len + 1
    while node < num_nodes:
        parent = nodes.parents[node]
        branch_depths[node] = branch_depths[parent] + 1 if parent > shape.spine_len else 1
        left = most_nodes - num_nodes
        if left > 0 and branch_depths[node] < BRANCH_DEPTH:
            width = min(int(np.ceil(left * nodes.scores[node])), NUM_SUCCESSORS // branch_depths[node])
            num_nodes = _attach(table, nodes, num_nodes, node, max(1, width), shape)
        node += 1
    return num_nodes


@kernel(borrows=True)
def _attach(table: SuccessorArrays, nodes: Nodes, num_nodes: int, node: int, width: int, shape: SpineShape) -> int:
    """Attach the best successors of a node, at most `width`, without the one that the chain goes on with."""
    before = nodes.tokens[nodes.parents[node]] if node > 0 else shape.before_root
    entry, _ = find_successors(table, before, nodes.tokens[node], shape.use_bigram)
    if entry < 0 or nodes.depths[node] >= shape.limits.max_depth:
        return num_nodes
    is_copied = node <= shape.spine_len and node < len(shape.chain)
    skip = shape.chain[node] if is_copied else _NO_SKIP
    total = table.probabilities[entry].sum()
    last = min(shape.limits.max_nodes + 1, num_nodes + width)
    for rank in range(NUM_SUCCESSORS):
        token, score = table.ids[entry, rank], table.probabilities[entry, rank] / total
        if num_nodes >= last or token == NO_TOKEN or score < MIN_SCORE:
            break
        if token != skip:
            put_node(nodes, num_nodes, node, token, _ADJACENCY, score)
            num_nodes += 1
    return num_nodes
