"""STAND: stochastic n-gram drafting, its candidates drawn with the target's own noise.

Owns what one request's drafting remembers: its buffers and the rates its evidence has proved. The tree is grown
best-first; the paper's own static tree is the ablation "best_first".
"""

from __future__ import annotations

from functools import cache

import numpy as np

from decoding.drafters.base import TopTokens
from decoding.drafters.beliefs import learn
from decoding.drafters.candidates import CANDIDATES, draft_law
from decoding.drafters.ngram_harvest import prompt_contexts, tree_contexts
from decoding.drafters.nodes import to_tree
from decoding.drafters.stand_beliefs import start_stand_beliefs
from decoding.drafters.stand_growth import Draft, Limits, allocate, fill_tree
from decoding.drafters.static_tree import StaticTree, shipped_tree
from decoding.request import Request
from decoding.stores import DraftingStores
from decoding.stores.ngram import NUM_SUCCESSORS
from decoding.tree import DraftTree
from decoding.verify import Verdict

ABLATIONS = ("best_first", "refill")

_UNLIMITED = np.iinfo(np.int32).max
_ROOT_ALONE = (np.full(1, -1, np.int32), np.zeros(1, np.int32))


class StandDrafter:
    """STAND (section 4): look-up from 4-grams down, children by Gumbel-top-k, every row harvested.

    A node's candidates are ranked by log q plus the request's own noise at their position, the very noise the
    target's token is drawn with, so that what q and p agree on is drafted first. The default grows the tree
    best-first by each candidate's chance given that noise. `without` leaves out "best_first" (then the static tree
    of the paper, cut to the budget, its slots without a candidate filled best-first) and "refill" (then those slots
    stay empty). tree: the static tree; None for the shipped one.
    """

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, session: DraftingStores, tree: StaticTree | None = None) -> None:
        self._request = request
        self._ngrams = session.ngrams
        speculation = request.speculation
        order = CANDIDATES[speculation.candidates]
        self._law = draft_law(request.sampling, order)
        self._beliefs = start_stand_beliefs(request.sampling.temperature, order)
        is_static = tree is not None or "best_first" in speculation.without
        self._slots = (tree.arrays() if tree else _shipped_arrays()) if is_static else _ROOT_ALONE
        self._refill = "refill" not in speculation.without
        self._num_tokens = 0
        self._buffers = allocate(16)

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        if top is not None:
            contexts = prompt_contexts(self._request.tokens, start, len(top.ids))
            self._ngrams.harvest(contexts, top.ids, top.probabilities)

    def propose(self, budget: int) -> DraftTree:
        if budget >= len(self._buffers.classes):
            self._buffers = allocate(budget + 1)
        self._num_tokens = self._request.num_tokens
        max_depth = self._request.speculation.max_depth
        draft = Draft(
            self._ngrams.arrays,
            self._request.tokens,
            self._law,
            self._beliefs.chances,
            self._buffers,
            Limits(budget, _UNLIMITED if max_depth is None else max_depth, 0.0, self._refill),
            *self._slots,
        )
        return to_tree(self._buffers.nodes, int(fill_tree(draft)))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        learn(self._beliefs, self._buffers.classes, tree, verdict)
        if top is not None:
            contexts = tree_contexts(self._request.tokens[: self._num_tokens], tree)
            self._ngrams.harvest(contexts, top.ids, top.probabilities)

    def slots_of(self, verdict: Verdict) -> list[int]:
        """The static tree's slots on the path just accepted, root left out; -1 for nodes outside it."""
        return [int(self._buffers.slots[node]) for node in verdict.path[1:]]


@cache
def _shipped_arrays() -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], np.ndarray[tuple[int], np.dtype[np.int32]]]:
    return shipped_tree("general").arrays()
