"""What a drafter is: one object per running request, made by the registry, fed by the engine.

A drafter can change how fast, never what. It reads the request's tokens and its session's stores. Questions change
nothing; a drafter learns when it probes, proposes, observes and finishes.
"""

from __future__ import annotations

from typing import Protocol

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Verdict
from decoding.costs.acceptance import Brought
from decoding.costs.price import DraftBudget
from decoding.stores.ngram import NgramStore
from decoding.stores.successor_table import NUM_SUCCESSORS


class Drafter(Protocol):
    """One request's drafter."""

    @property
    def num_top(self) -> int:
        """The k that it wants in `TopTokens` of the next step; 0 asks for none."""

    @property
    def weighs_harvest(self) -> bool:
        """Whether it learns from the target's logits only where that is worth its price."""

    @property
    def hit_rate(self) -> float:
        """How often the token after one that the draft model ran is among those that it thought likeliest."""

    @property
    def alone(self) -> Brought | None:
        """What the stores alone were expected to bring where the draft model was asked; None for the same."""

    @property
    def is_awake(self) -> bool:
        """Whether to probe at this step."""

    @property
    def is_patient(self) -> bool:
        """Whether a probe may as well come some tokens later: many were in vain."""

    def probe(self) -> float:
        """How likely the likeliest next token is, before any tree is grown."""

    def propose(self, budget: DraftBudget) -> DraftTree:
        """A tree of at most `budget.max_nodes` drafted nodes, rooted at the request's last token.

        A drafter that estimates chances leaves out nodes less likely to be accepted than `budget.price` says, which
        are not worth their price; one that does not drafts by the number alone.
        """

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """A chunk of the prompt was run: `top` row i follows prompt position `start + i`."""

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The step is verified and the request extended: harvest every row, rejected ones too."""

    def finish(self) -> dict[str, int]:
        """The reply has ended: by source, how many of its tokens were predicted, drafted or not."""


class FixedBudgetDrafter:
    """A drafter that spends the nodes it is given, whatever they cost, and learns nothing."""

    num_top = 0
    weighs_harvest = False
    hit_rate = 1.0
    alone = None
    is_awake = True
    is_patient = False

    def __init__(self, request: Request) -> None:
        self._request = request

    def probe(self) -> float:
        """It knows no chances."""
        return 1.0

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        pass

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        pass

    def finish(self) -> dict[str, int]:
        return {}


class HarvestingDrafter(FixedBudgetDrafter):
    """One that teaches the session's n-grams what the target says after every token, of rejected nodes too."""

    num_top = NUM_SUCCESSORS

    def __init__(self, request: Request, ngrams: NgramStore) -> None:
        super().__init__(request)
        self._ngrams = ngrams
        self._num_tokens = 0  # up to the root of the tree under way

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        self._ngrams.teach_prompt(self._request.keys, start, top)

    def begin_tree(self) -> IntArray:
        """A tree is about to grow at the end of these tokens, int32 [t]."""
        self._num_tokens = self._request.num_tokens
        return self._request.keys

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        self._ngrams.teach_tree(self._request.keys[: self._num_tokens], tree, verdict, top)
