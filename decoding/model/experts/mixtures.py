"""How many experts a model's mixtures have, and how many the tokens of its last forward chose.

Knows no costs. A model has the same number of experts for each token in all its mixtures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from decoding.model.experts.fused import FusedExperts


class Mixtures:
    """All mixtures of a model whose experts run together."""

    def __init__(self, mixtures: Sequence[FusedExperts]) -> None:
        self._mixtures = mixtures
        self.num_experts = fmean(each.num_experts for each in mixtures)

    @property
    def num_chosen(self) -> float:
        """Of each token, once a forward ran."""
        return fmean(each.num_ranks for each in self._mixtures)

    def num_distinct(self) -> float:
        """How many experts the last forward read in a mixture."""
        return fmean(each.num_distinct() for each in self._mixtures)
