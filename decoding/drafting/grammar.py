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
from decoding.drafting.drafter import Drafter
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher


class TreeGrammar:
    """One request's. matcher: up to date with the reply. may_force: whether trees may hold what the grammar forces."""

    def __init__(self, request: Request, matcher: GrammarMatcher) -> None:
        self.may_force = request.speculation.may_use("grammar")
        self._request = request
        self._matcher = self._ahead = matcher
        self._num_ahead = 0  # tokens of the request when `_ahead` was copied
        self._forced: list[int] = []
        self._own = root_only(0)
        self._num_tokens = 0  # when `_own` was proposed

    def forced(self) -> list[int]:
        """The tokens that the reply must go on with, if any and if they may be drafted; found once a step."""
        if self._num_ahead != self._request.num_tokens:
            self._ahead, self._forced = self._matcher.copy(), []
            if self.may_force:
                with contextlib.suppress(BrokenGrammar):
                    self._forced = self._ahead.forced()
            self._num_ahead = self._request.num_tokens  # last, so that what fails fails again when it is tried again
        return self._forced

    def revise(self, proposed: DraftTree, max_nodes: int) -> DraftTree:
        """The tree to verify: of the proposed one what the grammar allows, and as much as `max_nodes` lets of what it
        forces. A tree that is verified by rejection stays, since what is tested may depend on nothing else."""
        self._num_tokens, self._own = self._request.num_tokens, proposed
        if max_nodes == 0 or proposed.draws is not None:
            return proposed
        forced = self.forced()
        with contextlib.suppress(BrokenGrammar):
            self._own = _part(proposed, allowed_nodes(proposed, self._ahead))
        return with_chain(self._own, forced, max_nodes)

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


def allowed_nodes(tree: DraftTree, matcher: GrammarMatcher) -> IntArray:
    """int32 [m], ascending: the nodes whose paths the grammar allows. matcher: at the root, and left there."""
    tokens: list[int] = tree.tokens.tolist()
    children: defaultdict[int, list[int]] = defaultdict(list)
    for node, parent in enumerate(tree.parents.tolist()):
        children[parent].append(node)
    allowed, path = [0], [iter(children[0])]  # depth-first: of each node on the path, the children yet to visit
    while path:
        node = next(path[-1], -1)
        if node < 0:
            path.pop()
            if path:
                matcher.rollback(1)
        elif matcher.try_consume(tokens[node]):
            allowed.append(node)
            path.append(iter(children[node]))
        elif matcher.may_end_with(tokens[node]):  # nothing can come after it
            allowed.append(node)
    return np.array(sorted(allowed), np.int32)


def _part(tree: DraftTree, nodes: IntArray) -> DraftTree:
    """The tree of these nodes alone, which are ascending and a tree."""
    if len(nodes) == len(tree):
        return tree
    parents = np.searchsorted(nodes, tree.parents[nodes]).astype(np.int32)
    parents[0] = -1
    names = None if tree.names is None else tree.names[nodes]
    return DraftTree(tree.tokens[nodes], parents, tree.sources[nodes], origins=nodes, names=names)


def with_chain(tree: DraftTree, forced: list[int], max_nodes: int) -> DraftTree:
    """The tree with a chain under its root, along nodes that are there already as far as they go, then with new ones
    while it has fewer than `max_nodes`."""
    children = dict(zip(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True), range(len(tree)), strict=True))
    node, depth = 0, 0
    while depth < len(forced) and (child := children.get((node, forced[depth]))) is not None:
        node, depth = child, depth + 1
    added = np.array(forced[depth:][: max(max_nodes - tree.num_drafted, 0)], np.int32)
    if len(added) == 0:
        return tree
    first, names = len(tree), tree.names
    return DraftTree(
        np.concatenate((tree.tokens, added)),
        np.concatenate((tree.parents, [node], np.arange(first, first + len(added) - 1))).astype(np.int32),
        np.concatenate((tree.sources, np.full(len(added), Source.GRAMMAR, np.int8))),
        names=None if names is None else np.concatenate((names, np.zeros(len(added), names.dtype))),
    )
