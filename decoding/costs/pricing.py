"""How much each sequence may draft in a step: what it asked for, or what is worth its price.

Owns the costs in force. Knows sequences by their demands only. Invariant: together the budgets fit the room there is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decoding.costs.curve import CostCurve
from decoding.costs.price import NOTHING, DraftBudget, Pace, node_price, token_rate

TRIAL_INTERVAL = 16  # plain steps of a request after which one tree is drafted although trees have not paid


@dataclass(frozen=True, slots=True)
class Demand:
    """What one decoding sequence asks of a step. max_nodes: of a budget asked for, None where each node is weighed
    against its price; context: its tokens so far; tokens_left: that it may yet have."""

    max_nodes: int | None
    context: int
    tokens_left: int
    pace: Pace
    runs_draft_model: bool = False


class Pricing:
    """most_nodes: the largest budget anybody gets. draft_curve: of the draft model's forwards, where there is one."""

    def __init__(self, most_nodes: int, curve: CostCurve, draft_curve: CostCurve | None = None) -> None:
        self._most_nodes = most_nodes
        self.set_costs(curve, draft_curve)

    def set_costs(self, curve: CostCurve, draft_curve: CostCurve | None) -> None:
        """Let budgets follow these costs from here on."""
        self._curve = curve
        self._draft_curve = draft_curve

    def budgets(self, demands: Sequence[Demand], room: int) -> list[DraftBudget]:
        """A budget for each demand, of at most `room` nodes together: trees shrink alike before anybody waits."""
        if not demands:
            return []
        rate = token_rate(self._curve, [demand.pace for demand in demands], [demand.context for demand in demands])
        num_sharing = sum(demand.runs_draft_model for demand in demands)
        budgets = [self._budget(demand, rate, num_sharing) for demand in demands]
        wanted = sum(budget.max_nodes for budget in budgets)
        if wanted > room:
            return [replace(each, max_nodes=each.max_nodes * room // wanted) for each in budgets]
        return budgets

    def _budget(self, demand: Demand, rate: float, num_sharing: int) -> DraftBudget:
        """Where drafting has not paid for itself the step is a plain one, but for a trial now and then.

        The price of a draft forward is shared by the `num_sharing` sequences that draft with the draft model.
        """
        if demand.tokens_left <= 1:  # one token to go: nothing to draft for
            return NOTHING
        if demand.max_nodes is not None:
            return DraftBudget(min(demand.max_nodes, self._most_nodes))
        pace, price, round_price = demand.pace, node_price(self._curve, rate, demand.context), 0.0
        if demand.runs_draft_model and self._draft_curve is not None:
            price += node_price(self._draft_curve, rate, demand.context)
            round_price = rate * self._draft_curve.base / num_sharing
        is_trial = pace.plain_steps % TRIAL_INTERVAL == TRIAL_INTERVAL - 1
        pays = pace.pays(price, rate * (self._curve.draft + pace.draft_seconds))
        return DraftBudget(self._most_nodes, price, round_price) if pays or is_trial else NOTHING
