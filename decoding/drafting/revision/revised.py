"""A method's tree, revised by what the request itself knows of its reply.

Puts in what its prediction says comes next, takes out what its grammar forbids, and puts in what the grammar forces.
Knows no method. Invariant: the method is shown the tree it proposed, less what was taken out, and the rows of it.
"""

from __future__ import annotations

from dataclasses import replace

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, root_only
from decoding.core.verdict import Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import Drafter
from decoding.drafting.revision.prediction import Prediction
from decoding.drafting.revision.revision import Revision
from decoding.sampling.logits_processors import LogitsProcessors

LEAST_CHANCE = 0.1  # of a predicted token to be accepted, where nothing says what a node costs


def revise(
    drafter: Drafter, request: Request, prediction: Prediction | None, processors: LogitsProcessors | None
) -> Drafter:
    """A method's drafter, revised where the request has a prediction or a grammar."""
    has_grammar = processors is not None and processors.matcher is not None
    if prediction is None and not has_grammar:
        return drafter
    return RevisedDrafter(drafter, request, prediction, processors if has_grammar else None)


class RevisedDrafter:
    """One request's drafter around its method's. processors: of a request with a grammar, else None."""

    def __init__(
        self, drafter: Drafter, request: Request, prediction: Prediction | None, processors: LogitsProcessors | None
    ) -> None:
        self.num_top = drafter.num_top
        self._drafter = drafter
        self._request = request
        self._prediction = prediction
        self._processors = processors
        self._num_tokens = 0
        self._own = root_only(0)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        self._drafter.observe_prefill(start, top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        self._num_tokens = self._request.num_tokens
        predicted = self._predicted(budget)
        proposed = self._drafter.propose(replace(budget, max_nodes=budget.max_nodes - sum(map(len, predicted))))
        self._own = proposed
        if proposed.draws is not None:  # verified by rejection: what is tested may not depend on anything else
            return proposed
        revision = Revision(proposed)
        for tokens in predicted:
            revision.add_chain(0, tokens, Source.PREDICTION)
        if self._processors is not None and self._processors.matcher is not None:
            self._processors.catch_up()
            revision.obey(self._processors.matcher, budget.max_nodes)
        tree, self._own = revision.tree(proposed)
        return tree

    def _predicted(self, budget: DraftBudget) -> list[list[int]]:
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

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002
        """Show the method its own nodes and the path as far as it goes along them, then the rest as plain text."""
        num_own = len(self._own)
        path = verdict.path
        num_along = int((path < num_own).sum())  # own nodes come first, and under another node there are none
        own_top = top and TopTokens(top.ids[:num_own], top.probabilities[:num_own])
        self._drafter.observe(self._own, Verdict(path[:num_along], verdict.tokens[:num_along]), own_top)
        start = self._num_tokens - 1 + num_along
        others = path[num_along:][: max(self._request.num_tokens - start, 0)]  # a stop may have cut the run
        if top is not None and len(others):
            self._drafter.observe_prefill(start, TopTokens(top.ids[others], top.probabilities[others]))
