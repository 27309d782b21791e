"""Feeds the session's stores whatever method drafts, and notes how well the n-gram store would have done.

Knows no method. Invariant: the method sees and does what it would without.
"""

from __future__ import annotations

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree
from decoding.core.verdict import Verdict
from decoding.drafting.harvest import harvest_prefill, harvest_tree, teach_prompt, teach_tree, token_before_root
from decoding.drafting.sources import DraftingStores
from decoding.stores.earnings import Promise
from decoding.stores.successor_table import NUM_SUCCESSORS


class Teacher:
    """One request's. promise: of the n-gram store, written here; with_adjacency: where the method does not harvest."""

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, stores: DraftingStores, promise: Promise, with_adjacency: bool) -> None:
        self._request = request
        self._ngrams = stores.ngrams
        self._adjacency = stores.adjacency if with_adjacency else None
        self._promise = promise
        self._num_tokens = 0
        self._before_root = -1

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        teach_prompt(self._ngrams, self._request.tokens, start, top)
        if self._adjacency is not None:
            harvest_prefill(self._adjacency, self._request, start, top)

    def begin(self) -> None:
        """A tree is about to be proposed at the last token."""
        self._num_tokens = self._request.num_tokens
        self._before_root = token_before_root(self._request)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        num_foretold = teach_tree(self._ngrams, self._request.tokens[: self._num_tokens], tree, verdict, top)
        if self._adjacency is not None:
            harvest_tree(self._adjacency, self._before_root, tree, top)
        self._promise.note(num_foretold, len(verdict.tokens))
