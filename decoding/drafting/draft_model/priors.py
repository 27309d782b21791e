"""What speaks for a draft model's candidate, and what that was worth elsewhere.

Owns the classes of such evidence and their measured rates; the running estimates are `beliefs.Beliefs`. Knows nothing
of trees.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.drafting.tree.beliefs import step_of

_WEIGHT_BOUNDS = (0.999, 0.99, 0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15, 0.06, 0.02)
_NUM_WEIGHT_CLASSES = len(_WEIGHT_BOUNDS) + 1

# Measured on the bundled pair, greedy and at temperatures 0.7 and 1, rounded: a node's best child, then the others,
# by weight from 0.999 and more down to less than 0.02.
_GREEDY = (
    (0.995, 0.995, 0.99, 0.98, 0.96, 0.83, 0.65, 0.33, 0.13, 0.05, 0.02, 0.01),
    (0.50, 0.50, 0.50, 0.50, 0.50, 0.50, 0.45, 0.40, 0.20, 0.10, 0.02, 0.005),
)
_SAMPLED = (
    (0.99, 0.985, 0.965, 0.92, 0.82, 0.58, 0.40, 0.20, 0.10, 0.05, 0.02, 0.01),
    (0.40, 0.40, 0.40, 0.40, 0.40, 0.40, 0.35, 0.31, 0.11, 0.055, 0.04, 0.03),
)


def prior_chances(temperature: float) -> NDArray[np.float32]:
    """float32 [C], in the order of `weight_class`, of a request at `temperature`."""
    chances: NDArray[np.float32] = np.array(_SAMPLED if temperature > 0 else _GREEDY, np.float32).ravel()
    assert len(chances) == 2 * _NUM_WEIGHT_CLASSES, len(chances)
    return chances


@nb.njit(cache=True)
def weight_class(weight: float, rank: int) -> int:
    """The evidence class of a node: its weight among its siblings in steps, and whether it is the best of them."""
    step = step_of(weight, _WEIGHT_BOUNDS)
    return int(step if rank == 0 else _NUM_WEIGHT_CLASSES + step)
