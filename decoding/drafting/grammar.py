"""What a request's grammar makes of its trees: what must come next is drafted, and what may not come is taken out.

Knows no method. Runs ahead on one copy of the reply's matcher a step, which may break where the reply never comes.
Invariant: nodes keep their order, so the method's own come first, and it is shown the step as if it had proposed those.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict

import numpy as np

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import Drafter
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher

Chain = tuple[int, list[int]]  # a node, and the tokens that must come after it
MOST_AHEAD = 100_000  # forced tokens before a step's nodes: a mask reads all that follow, and as many take 0.1 s


class TreeGrammar:
    """One request's. matcher: up to date with the reply."""

    def __init__(self, request: Request, matcher: GrammarMatcher) -> None:
        self._request = request
        self._matcher = self._copy = matcher
        self._num_copied = 0  # tokens of the request when `_copy` was made
        self._own = root_only(0)
        self._num_tokens = 0  # when `_own` was proposed

    def forced(self) -> list[int]:
        """The tokens that the reply must go on with; often none."""
        with contextlib.suppress(BrokenGrammar):
            return self._ahead().forced()
        return []

    def revise(self, proposed: DraftTree, budget: DraftBudget) -> DraftTree:
        """The tree to verify: of the proposed one what the grammar allows, and under its leaves what it forces, as far
        as the budget lets. A tree that is verified by rejection stays: what is tested may depend on nothing else."""
        self._num_tokens, self._own = self._request.num_tokens, proposed
        if budget.max_nodes == 0 or proposed.draws is not None:
            return proposed
        try:
            allowed, chains = walk(proposed, self._ahead())
        except BrokenGrammar:
            return proposed
        most = MOST_AHEAD // max([1, *(len(forced) for _, forced in chains)])
        self._own = _part(proposed, allowed[: 1 + most])
        speculation = self._request.speculation
        if not speculation.may_use("grammar"):
            return self._own
        chains = [(leaf, forced) for leaf, forced in chains if leaf <= most]
        budget = budget._replace(max_nodes=min(budget.max_nodes, most)).within(speculation.max_depth)
        return _with_chains(self._own, chains, budget)

    def show(self, drafter: Drafter, verdict: Verdict, top: TopTokens | None) -> None:
        """Let the method that drafted observe the step: its own nodes, the path as far as it goes along them, and the
        rest of the path as plain text. top: of all rows of the revised tree."""
        num_own, path = len(self._own), verdict.path
        num_along = int((path < num_own).sum())  # under a node that was added there are none of the method's own
        own_verdict = Verdict(path[:num_along], verdict.tokens[:num_along])
        drafter.observe(self._own, own_verdict, None if top is None else top.rows(0, num_own))
        start = self._num_tokens - 1 + num_along
        others = path[num_along:][: max(self._request.num_tokens - start, 0)]  # a stop may have cut the run
        if top is not None and len(others):
            drafter.observe_prefill(start, TopTokens(top.ids[others], top.probabilities[others]))

    def _ahead(self) -> GrammarMatcher:
        """The step's copy of the matcher, at the last token."""
        if self._num_copied != self._request.num_tokens:
            self._num_copied, self._copy = self._request.num_tokens, self._matcher.copy()
        return self._copy


def walk(tree: DraftTree, matcher: GrammarMatcher) -> tuple[IntArray, list[Chain]]:
    """int32 [m], ascending: the nodes whose paths the grammar allows. And what it forces after each leaf of their tree,
    in which nodes are counted anew; of all leaves no more than `MOST_AHEAD` tokens and a leaf's. matcher: at the root,
    and left there. Raises BrokenGrammar."""
    tokens: list[int] = tree.tokens.tolist()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(tree.parents.tolist()):
        children[parent].append(node)
    allowed, forced, num_forced = [0], dict[int, list[int]](), 0
    path = [(0, iter(children[0]))]  # depth-first: the nodes down to the matcher's, with the children yet to visit
    while path:
        node, waiting = path[-1]
        child = next(waiting, -1)
        if child < 0:
            if allowed[-1] == node and num_forced <= MOST_AHEAD:  # nothing below it is allowed
                forced[node] = matcher.forced()
                num_forced += len(forced[node])
            path.pop()
            if path:
                matcher.rollback(1)
        elif matcher.try_consume(tokens[child]):
            allowed.append(child)
            path.append((child, iter(children[child])))
        elif matcher.may_end_with(tokens[child]):  # nothing can come after it
            allowed.append(child)
    allowed.sort()
    return np.array(allowed, np.int32), [(place, forced[node]) for place, node in enumerate(allowed) if node in forced]


def _part(tree: DraftTree, nodes: IntArray) -> DraftTree:
    """The tree of these nodes alone, which are ascending and a tree."""
    if len(nodes) == len(tree):
        return tree
    parents = np.searchsorted(nodes, tree.parents[nodes]).astype(np.int32)
    parents[0] = -1
    names = None if tree.names is None else tree.names[nodes]
    return DraftTree(tree.tokens[nodes], parents, tree.sources[nodes], origins=nodes, names=names)


def _with_chains(tree: DraftTree, chains: list[Chain], budget: DraftBudget) -> DraftTree:
    """The tree with chains under its leaves, as far as the budget lets."""
    tokens, parents, depths = tree.tokens.tolist(), tree.parents.tolist(), tree.depths()
    for leaf, forced in chains:
        node, most = leaf, min(budget.max_nodes + 1 - len(tokens), budget.max_depth - int(depths[leaf]))
        for token in forced[: max(most, 0)]:
            parents.append(node)
            node = len(tokens)
            tokens.append(token)
    added = np.zeros(len(tokens) - len(tree), np.int32)
    if len(added) == 0:
        return tree
    sources = np.concatenate((tree.sources, (added + Source.GRAMMAR).astype(np.int8)))
    names = None if tree.names is None else np.concatenate((tree.names, added))
    return DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), sources, names=names)
