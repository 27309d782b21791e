"""What a candidate of the n-gram store is worth before a request has shown it: measured rates by evidence.

Owns the priors; the running estimates are `beliefs.Beliefs`. Knows nothing of trees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.drafters.beliefs import Beliefs
from decoding.drafters.candidates import COUPLED, NUM_CANDIDATE_CLASSES

_PRIOR_WEIGHT = 16.0  # how many observations the prior counts for


def start_stand_beliefs(temperature: float, order: int) -> Beliefs:
    """The priors of a request that samples at `temperature` and orders candidates by `order`."""
    rates = _COUPLED if order == COUPLED and temperature > 0 else _RANKED
    chances: NDArray[np.float32] = np.array(rates, np.float32).ravel()
    assert len(chances) == NUM_CANDIDATE_CLASSES, len(chances)
    tried = np.full(len(chances), _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)


# One row for each n of 1 to 4, one column for each weight class from 0.99 and more down to less than 0.02.
_COUPLED = ((0.95, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1, 0.04, 0.01),) * 4
_RANKED = ((0.95, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.1, 0.04, 0.01),) * 4
