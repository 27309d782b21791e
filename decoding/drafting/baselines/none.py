"""No drafting: every step is a plain decode, a tree of one node."""

from __future__ import annotations

from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, Verdict, root_only
from decoding.costs.price import DraftBudget


class NoDrafter:
    """Proposes the root alone and learns nothing."""

    num_top = 0

    def __init__(self, request: Request) -> None:
        self._request = request

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        pass

    def propose(self, budget: DraftBudget) -> DraftTree:  # noqa: ARG002
        return root_only(int(self._request.tokens[-1]))

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        pass
