"""A method's tree, revised by what the request itself knows of its reply.

Puts in what its prediction says comes next, takes out what its grammar forbids, and puts in what the grammar forces.
Knows no method. Invariant: the method is shown the tree it proposed, less what was taken out, and the rows of it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.revision.prediction import Prediction
from decoding.drafting.revision.revision import Revision
from decoding.errors import BrokenGrammar
from decoding.sampling.grammar.matcher import GrammarMatcher

LEAST_CHANCE = 0.1  # of a predicted token to be accepted, where nothing says what a node costs


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step as the method that drafted sees it: its own nodes, the path as far as it goes along them, and the rest
    of the path as plain text from position `start` on."""

    tree: DraftTree
    verdict: Verdict
    top: TopTokens | None
    start: int = 0
    rest: TopTokens | None = None


class Reviser:
    """One request's. prediction, matcher: None where it has none; the matcher is up to date with the reply."""

    def __init__(self, request: Request, prediction: Prediction | None, matcher: GrammarMatcher | None) -> None:
        self._request = request
        self._prediction = prediction
        self._matcher = matcher
        self._num_tokens = 0
        self._predicted: list[list[int]] = []
        self._budget = DraftBudget(0)
        self._own = root_only(0)

    def begin(self, budget: DraftBudget) -> DraftBudget:
        """What is left of the budget for the method, after the predicted chains."""
        self._num_tokens = self._request.num_tokens
        self._budget = budget
        self._predicted = self._chains(budget)
        return replace(budget, max_nodes=budget.max_nodes - sum(map(len, self._predicted)))

    def _chains(self, budget: DraftBudget) -> list[list[int]]:
        """Chains of predicted tokens, together within the budget."""
        if self._prediction is None:
            return []
        self._prediction.follow(self._request.output)
        max_depth = self._request.speculation.max_depth
        left = budget.max_nodes
        length = left if max_depth is None else min(left, max_depth)
        chains = []
        for tokens in self._prediction.chains(length, max(budget.min_chance, LEAST_CHANCE)):
            chains.append(tokens[:left])
            left -= len(chains[-1])
        return chains

    def revise(self, proposed: DraftTree) -> DraftTree:
        """The tree to verify, of the one that the method proposed."""
        self._own = proposed
        if proposed.draws is not None:  # verified by rejection: what is tested may not depend on anything else
            return proposed
        revision = Revision(proposed)
        for tokens in self._predicted:
            revision.add_chain(0, tokens, Source.PREDICTION)
        if self._matcher is not None:
            may_force = self._request.speculation.may_use("grammar")
            with contextlib.suppress(BrokenGrammar):  # further than the reply itself may ever come
                revision.obey(self._matcher.copy(), self._budget.max_nodes if may_force else 0)
        tree, self._own = revision.tree(proposed)
        return tree

    def outcome(self, verdict: Verdict, top: TopTokens | None) -> Outcome:
        """What the method is to see of the step. top: of all rows of the revised tree."""
        num_own, path = len(self._own), verdict.path
        num_along = int((path < num_own).sum())  # own nodes come first, and under another node there are none
        own_top = top and TopTokens(top.ids[:num_own], top.probabilities[:num_own])
        own_verdict = Verdict(path[:num_along], verdict.tokens[:num_along])
        start = self._num_tokens - 1 + num_along
        others = path[num_along:][: max(self._request.num_tokens - start, 0)]  # a stop may have cut the run
        if top is None or len(others) == 0:
            return Outcome(self._own, own_verdict, own_top)
        rest = TopTokens(top.ids[others], top.probabilities[others])
        return Outcome(self._own, own_verdict, own_top, start, rest)
