"""What a drafter is: one object per running request, made by the registry, fed by the engine.

A drafter can change how fast, never what. It reads the request's tokens and its session's stores.
"""

from __future__ import annotations

from typing import Protocol

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.price import DraftBudget


class Drafter(Protocol):
    """One request's drafter."""

    @property
    def num_top(self) -> int:
        """The k that it wants in `TopTokens` of the next step; 0 asks for none."""

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """A chunk of the prompt was run: `top` row i follows prompt position `start + i`."""

    def propose(self, budget: DraftBudget) -> DraftTree:
        """A tree of at most `budget.max_nodes` drafted nodes, rooted at the request's last token.

        A drafter that estimates chances leaves out nodes less likely to be accepted than `budget.price` says, which
        are not worth their price; one that does not drafts by the number alone.
        """

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The step is verified and the request extended: harvest every row, rejected ones too."""
