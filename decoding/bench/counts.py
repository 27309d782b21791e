"""Tokens, forwards and drafted nodes, summed over replies, and the ratios of these sums. Pure."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """forwards: target forwards that verified a root, counted once for each reply with a root in it."""

    tokens: int
    forwards: int
    drafted: int

    @property
    def tau(self) -> float:
        """Acceptance length, or tokens per iteration: tokens emitted per target forward."""
        return self.tokens / self.forwards

    @property
    def nodes_per_step(self) -> float:
        return self.drafted / self.forwards
