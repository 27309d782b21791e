"""What a draft tree may have. Knows no source and no shape."""

from __future__ import annotations

from typing import NamedTuple

from decoding.costs.price import DraftBudget


class Limits(NamedTuple):
    """max_nodes: drafted ones; max_depth: edges from the root."""

    max_nodes: int
    max_depth: int


def limits_of(budget: DraftBudget, max_depth: int | None) -> Limits:
    """The budget's, but no deeper than `max_depth`, where it is not None."""
    return Limits(budget.max_nodes, budget.within(max_depth).max_depth)
