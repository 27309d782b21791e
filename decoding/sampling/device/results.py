"""What a step's sampling kernels found, as the host reads it.

Owns nothing. Invariant: it is a copy, which the next step leaves alone.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray, Verdict
from decoding.sampling.device.plan import PATH, Plan

# Shape suffixes: K top tokens, H ranked rows, L scored tokens.


class Results:
    """The results of a plan's kernels, on the host. words: int32, laid out by the plan."""

    def __init__(self, plan: Plan, words: IntArray) -> None:
        values = words.view(np.float32)
        ranked = slice(plan.first_ranked, plan.first_scored)
        ranks_HX = words[ranked].reshape(-1, 1 + 2 * plan.num_top)
        rank_values_HX = values[ranked].reshape(ranks_HX.shape)
        self.verdicts = _verdicts(plan, words)
        self.masses_H = rank_values_HX[:, 0].astype(np.float64)  # of a row, relative to its best token
        self.top_ids_HK = ranks_HX[:, 1 : 1 + plan.num_top]
        self.top_logits_HK = rank_values_HX[:, 1 + plan.num_top :].astype(np.float64)
        self.own_logits_L = values[plan.first_scored :: 2].astype(np.float64)
        self.num_higher_L = words[plan.first_scored + 1 :: 2]
        self._shares_HK: NDArray[np.float32] | None = None

    def top(self, rows: slice, num_top: int) -> TopTokens:
        """The `num_top` most likely tokens of some of the ranked rows."""
        if self._shares_HK is None:
            logits_HK = self.top_logits_HK
            shares_HK = np.exp(logits_HK - logits_HK[:, :1]) / self.masses_H[:, None]
            self._shares_HK = shares_HK.astype(np.float32)
        return TopTokens(self.top_ids_HK[rows, :num_top], self._shares_HK[rows, :num_top])


def _verdicts(plan: Plan, words: IntArray) -> list[Verdict | None]:
    """Of each walk; None where the device could not draw its last token."""
    if not len(plan.walks_TX):
        return []
    paths, tokens, ends = read_walks(words, plan.walks_TX[:, PATH].copy(), plan.num_nodes)
    start, found = 0, list[Verdict | None]()
    for end in ends.tolist():
        found.append(Verdict(paths[start:end], tokens[start:end]) if end > start else None)
        start = abs(end)
    return found


@nb.njit(cache=True)
def read_walks(
    words: IntArray, places: NDArray[np.int64], num_nodes: int
) -> tuple[IntArray, IntArray, NDArray[np.int64]]:
    """int32 paths and tokens of all walks, one after the other, and where each ends, negative where its last token is.
    places: int64, where each one's results begin; num_nodes: of all their trees."""
    paths, tokens, ends, place = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32), np.empty_like(places), 0
    for walk in range(len(places)):
        first, num_accepted = places[walk] + 1, words[places[walk]]
        last = places[walk + 1] if walk + 1 < len(places) else places[0] + len(places) + 2 * num_nodes
        room = (last - first) // 2
        for depth in range(num_accepted):
            paths[place], tokens[place] = words[first + depth], words[first + room + depth]
            place += 1
        ends[walk] = place if tokens[place - 1] >= 0 else -place
    return paths, tokens, ends
