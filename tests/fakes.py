"""Scripted stand-ins for the engine's parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Source, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import FixedBudgetDrafter
from decoding.stores.successor_table import NUM_SUCCESSORS


class ScriptedDrafter(FixedBudgetDrafter):
    """Knows the reply and drafts it, each token right with probability `accuracy`, with wrong siblings beside.

    reply: int32, the tokens plain decoding gives. The tree is a chain of the (sometimes altered) reply whose
    every node also has `num_wrong` children that are surely wrong.
    """

    num_top = NUM_SUCCESSORS

    def __init__(
        self, request: Request, reply: NDArray[np.int32], vocab_size: int, accuracy: float = 0.8, seed: int = 0
    ) -> None:
        super().__init__(request)
        self._reply = reply
        self._vocab_size = vocab_size
        self._accuracy = accuracy
        self._random = np.random.default_rng(seed)
        self.num_prefilled = 0
        self._prefilled_to = 0
        self.num_accepted = 0
        self.num_rejected = 0

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        assert start >= self._prefilled_to
        assert top is not None
        self.num_prefilled += len(top.ids)
        self._prefilled_to = start + len(top.ids)

    def propose(self, budget: DraftBudget) -> DraftTree:
        tokens, parents = [int(self._request.tokens[-1])], [-1]
        tip = 0
        for token in self._reply[self._request.num_output :].tolist():
            wrong = (token + 1) % self._vocab_size
            is_right = self._random.random() < self._accuracy
            spine, sibling = (token, wrong) if is_right else (wrong, (token + 2) % self._vocab_size)
            if len(tokens) + 1 > budget.max_nodes:
                break
            tokens += [sibling, spine]
            parents += [tip, tip]
            tip = len(tokens) - 1
        sources = np.full(len(tokens), Source.CONTEXT, np.int8)
        sources[0] = Source.ROOT
        tree = DraftTree(np.array(tokens, np.int32), np.array(parents, np.int32), sources)
        tree.check_integrity()
        return tree

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        assert top is not None
        assert len(top.ids) == len(tree)
        self.num_accepted += verdict.num_accepted
        self.num_rejected += tree.num_drafted - verdict.num_accepted
