"""A method's tree, revised by the request's grammar: without what it forbids, and with what it forces.

Knows no method. Invariant: the method is shown the tree it proposed, less what was taken out, and the rows of it.
"""

from __future__ import annotations

import contextlib

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.drafting.drafter import Drafter
from decoding.drafting.revision.revision import Revision
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher


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
