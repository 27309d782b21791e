"""What a draft tree may have. Knows no source and no shape."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from decoding.costs.price import DraftBudget

ANY_DEPTH = np.iinfo(np.int32).max


class Limits(NamedTuple):
    """max_nodes: drafted ones; max_depth: edges from the root."""

    max_nodes: int
    max_depth: int


def limits_of(budget: DraftBudget, max_depth: int | None) -> Limits:
    """The budget's nodes, as deep as `max_depth`, or as they come where it is None."""
    return Limits(budget.max_nodes, ANY_DEPTH if max_depth is None else max_depth)
