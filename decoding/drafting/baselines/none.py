"""No drafting: every step is a plain decode, a tree of one node."""

from __future__ import annotations

from decoding.core.tree import DraftTree, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.drafter import FixedBudgetDrafter


class NoDrafter(FixedBudgetDrafter):
    """Proposes the root alone and learns nothing."""

    def propose(self, budget: DraftBudget) -> DraftTree:  # noqa: ARG002
        return root_only(int(self._request.tokens[-1]))
