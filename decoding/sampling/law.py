"""The law that a request's tokens are drawn by, as a record for compiled code, and the tokens of a row that it keeps.

p is a row's distribution at the temperature, cut by top-k, then top-p (over what top-k kept), then min-p; ties go to
the smaller id. Knows nothing of noise or trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.ranking import ranked
from decoding.core.sampling_params import SamplingParams
from decoding.errors import BrokenLogits
from decoding.kernels.cpu.sampling.row import highest, mass, num_at_least, tokens_at_least
from decoding.kernels.numba_kernel import kernel

SIGNIFICANT_GAP = 8.0  # the search for a nucleus starts with tokens within so many nats of the best
_WHOLE_GAP = 10240.0  # and ends with so many: what is less likely is never drawn
_LOWEST = np.finfo(np.float32).min  # of finite values


class Law(NamedTuple):
    """Fields as in `SamplingParams`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: np.uint64


def law_of(asked: SamplingParams) -> Law:
    """The law of a request, with every number in the type that the kernels are compiled for."""
    return Law(float(asked.temperature), asked.top_k, float(asked.top_p), float(asked.min_p), np.uint64(asked.seed))


@kernel
def checked_highest(row: NDArray[np.float32], position: int) -> np.float32:
    """`highest`, but raises BrokenLogits if no token can be drawn from the row. position: of that token."""
    best = highest(row)
    if np.isnan(best):
        raise BrokenLogits(position)
    return best


@kernel
def nucleus(row: NDArray[np.float32], best: np.float32, law: Law) -> NDArray[np.int64]:
    """The tokens that top-k and then top-p keep, most likely first. best: the row's highest.

    Only tokens within a gap of the best are sorted; the gap grows until these are enough.
    """
    limit = law.top_k if law.top_k > 0 else len(row)
    mass_of_all = mass(row, best, np.float32(1.0 / law.temperature)) if law.top_k == 0 else 0.0
    gap = widest = SIGNIFICANT_GAP
    step = 0.0
    while True:
        near = tokens_at_least(row, _value_below(best, gap, law))
        if law.top_k > 0 and len(near) < limit and gap == SIGNIFICANT_GAP and num_at_least(row, _LOWEST) <= limit:
            gap = _WHOLE_GAP  # a grammar leaves no more than top-k asks for
            continue
        everything = len(near) == len(row) or gap >= _WHOLE_GAP
        if len(near) >= limit or everything or law.top_k == 0:
            order = near[ranked(row[near])][:limit]
            if law.top_p >= 1.0:
                return order
            weights = np.exp((row[order].astype(np.float64) - np.float64(best)) / law.temperature)
            is_part = law.top_k == 0 and not everything  # then the tail's mass counts too
            needed = law.top_p * (mass_of_all if is_part else weights.sum())
            before = 0.0
            for rank in range(len(order)):
                if before >= needed:
                    return order[:rank]
                before += weights[rank]
            if before >= needed or everything or law.top_k > 0:
                return order
        if gap == widest:
            widest *= 2.0  # grow in four steps, to sort few; in one if it holds all, which are then summed in order
            has_all = num_at_least(row, _value_below(best, widest, law)) == len(row)
            step = gap if has_all else gap / 4
        gap += step


@kernel(borrows=True)
def _value_below(best: np.float32, gap: float, law: Law) -> np.float32:
    return best - np.float32(gap * law.temperature)
