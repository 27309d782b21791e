"""What a drafter is: one object per running request, made by the registry, fed by the engine.

A drafter can change how fast, never what. It reads the request's tokens and its session's stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.tree import DraftTree
from decoding.verify import Verdict


@dataclass(frozen=True, slots=True)
class TopTokens:
    """The target's k most likely tokens after each row of a step, already on the host.

    ids: int32 [n, k], most likely first; probabilities: float32 [n, k] at temperature 1, over the
    whole vocabulary and before any filter.
    """

    ids: NDArray[np.int32]
    probabilities: NDArray[np.float32]


class Drafter(Protocol):
    """One request's drafter. `num_top` is the k it wants in `TopTokens`; 0 asks for none."""

    num_top: int

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        """A chunk of the prompt was run: `top` row i follows prompt position `start + i`."""

    def propose(self, budget: int) -> DraftTree:
        """A tree of at most `budget` drafted nodes, rooted at the request's last token."""

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:
        """The step is verified and the request extended: harvest every row, rejected ones too."""
