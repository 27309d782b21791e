"""What a request's grammar makes of whatever tree was drafted: without what it forbids, and with what it forces.

Knows no method. Invariant: nodes keep their order, so parents stay before their children, and the method is shown the
tree it proposed, less what was taken out, and the rows of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, Verdict, root_only
from decoding.drafting.drafter import Drafter
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher


class Revision:
    """proposed: the tree; it is not changed."""

    def __init__(self, proposed: DraftTree) -> None:
        self._proposed = proposed
        self._tokens: list[int] = proposed.tokens.tolist()
        self._parents: list[int] = proposed.parents.tolist()
        self._cut: set[int] = set()  # nodes that are taken out, with all below
        self._children: list[dict[int, int]] = [{} for _ in self._tokens]
        for node in range(1, len(self._tokens)):
            self._children[self._parents[node]][self._tokens[node]] = node

    def force(self, node: int, tokens: Sequence[int]) -> None:
        """Put `tokens` under `node`, along nodes that are there already as far as they go."""
        for token in tokens:
            if token not in self._children[node]:
                self._children[node][token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(node)
                self._children.append({})
            node = self._children[node][token]

    def obey(self, matcher: GrammarMatcher, budget: int) -> None:
        """Take out what the grammar forbids, then put in what it forces, from the root on, while `budget` lasts.

        matcher: at the root, and left there.
        """
        forced = self._visit(matcher)
        most = len(self._tokens) + budget - (len(self._kept()) - 1)
        for node, tokens in sorted(forced):
            self.force(node, tokens[: max(most - len(self._tokens), 0)])

    def _visit(self, matcher: GrammarMatcher) -> list[tuple[int, list[int]]]:
        """Mark what the grammar forbids, depth-first; where it leaves no choice then, and what must come there."""
        forced: list[tuple[int, list[int]]] = []
        path = [(0, list(self._children[0].items()))]  # to the node that `matcher` is at, and children to visit
        while path:
            node, waiting = path[-1]
            if waiting:
                token, child = waiting.pop(0)
                if matcher.try_consume(token):
                    path.append((child, list(self._children[child].items())))
                else:  # an end token stays where the reply may end, with nothing below
                    self._cut.update(self._children[child].values() if matcher.may_end_with(token) else (child,))
                continue
            if len(set(self._children[node].values()) - self._cut) <= 1 and (tokens := matcher.forced()):
                forced.append((node, tokens))
            path.pop()
            if path:
                matcher.rollback(1)
        return forced

    def _kept(self) -> NDArray[np.int64]:
        """The nodes that are left, ascending."""
        is_kept = [True]
        for node in range(1, len(self._tokens)):
            is_kept.append(is_kept[self._parents[node]] and node not in self._cut)
        return np.flatnonzero(is_kept)

    def tree(self) -> tuple[DraftTree, DraftTree]:
        """The revised tree, and as much as it begins with of the one that was proposed."""
        proposed, kept = self._proposed, self._kept()
        own = kept[kept < len(proposed)].astype(np.int32)
        tokens = np.array(self._tokens, np.int32)[kept]
        parents = np.searchsorted(kept, np.array(self._parents)[kept]).astype(np.int32)
        parents[0] = -1
        added = np.zeros(len(kept) - len(own), np.int32)
        sources = np.concatenate((proposed.sources[own], (added + Source.GRAMMAR).astype(np.int8)))
        names = None if proposed.names is None else np.concatenate((proposed.names[own], added))
        first = slice(len(own))
        return (
            DraftTree(tokens, parents, sources, names=names),
            DraftTree(tokens[first], parents[first], sources[first], origins=own),
        )


class Reviser:
    """One request's. matcher: up to date with the reply."""

    def __init__(self, request: Request, matcher: GrammarMatcher) -> None:
        self._request = request
        self._matcher = matcher
        self._num_tokens = 0
        self._own = root_only(0)

    def revise(self, proposed: DraftTree, max_nodes: int) -> DraftTree:
        """The tree to verify, of the one that the method proposed."""
        self._num_tokens = self._request.num_tokens
        self._own = proposed
        if proposed.draws is not None:  # verified by rejection: what is tested may not depend on anything else
            return proposed
        revision, may_force = Revision(proposed), self._request.speculation.may_use("grammar")
        with contextlib.suppress(BrokenGrammar):  # further than the reply itself may ever come
            revision.obey(self._matcher.copy(), max_nodes if may_force else 0)
        tree, self._own = revision.tree()
        return tree

    def show(self, drafter: Drafter, verdict: Verdict, top: TopTokens | None) -> None:
        """Let the method that drafted observe the step: its own nodes, the path as far as it goes along them, and the
        rest of the path as plain text. top: of all rows of the revised tree."""
        num_own, path = len(self._own), verdict.path
        num_along = int((path < num_own).sum())  # own nodes come first, and under another node there are none
        own_verdict = Verdict(path[:num_along], verdict.tokens[:num_along])
        drafter.observe(self._own, own_verdict, None if top is None else top.rows(0, num_own))
        start = self._num_tokens - 1 + num_along
        others = path[num_along:][: max(self._request.num_tokens - start, 0)]  # a stop may have cut the run
        if top is not None and len(others):
            drafter.observe_prefill(start, TopTokens(top.ids[others], top.probabilities[others]))
