"""A method's drafter that also feeds the session's stores, and notes how well the n-gram store would have done.

Knows no method. Invariant: the method sees and does what it would without.
"""

from __future__ import annotations

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree
from decoding.core.verdict import Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import Drafter
from decoding.drafting.harvest import harvest_prefill, harvest_tree, teach_prompt, teach_tree, token_before_root
from decoding.drafting.sources import DraftingStores
from decoding.stores.earnings import Promise
from decoding.stores.successor_table import NUM_SUCCESSORS


class TeachingDrafter:
    """One request's drafter around its method's. promise: of the store, written here."""

    num_top = NUM_SUCCESSORS

    def __init__(self, drafter: Drafter, request: Request, stores: DraftingStores, promise: Promise) -> None:
        assert drafter.num_top in (0, self.num_top), drafter.num_top
        self._drafter = drafter
        self._request = request
        self._ngrams = stores.ngrams
        self._adjacency = stores.adjacency if drafter.num_top == 0 else None  # others harvest it themselves
        self._promise = promise
        self._num_tokens = 0
        self._before_root = -1

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        self._drafter.observe_prefill(start, top)
        teach_prompt(self._ngrams, self._request.tokens, start, top)
        if self._adjacency is not None:
            harvest_prefill(self._adjacency, self._request, start, top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        self._num_tokens = self._request.num_tokens
        self._before_root = token_before_root(self._request)
        return self._drafter.propose(budget)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        self._drafter.observe(tree, verdict, top)
        num_foretold = teach_tree(self._ngrams, self._request.tokens[: self._num_tokens], tree, verdict, top)
        if self._adjacency is not None:
            harvest_tree(self._adjacency, self._before_root, tree, top)
        self._promise.note(num_foretold, len(verdict.tokens))
