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
    sampled = _COUPLED if order == COUPLED else _RANKED
    rates = sampled if temperature > 0 else _GREEDY
    chances: NDArray[np.float32] = np.array(rates, np.float32).ravel()
    assert len(chances) == NUM_CANDIDATE_CLASSES, len(chances)
    tried = np.full(len(chances), _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)


# Measured on the bundled model's three skills at temperature 0.7 and 1, and greedy. One row for each n of 1 to 4,
# one column for each weight class from 0.99 and more down to less than 0.02.
_COUPLED = (
    (0.90, 0.75, 0.62, 0.57, 0.44, 0.31, 0.135, 0.045, 0.02, 0.004),
    (0.945, 0.90, 0.76, 0.70, 0.60, 0.35, 0.15, 0.05, 0.02, 0.003),
    (0.925, 0.85, 0.77, 0.67, 0.57, 0.39, 0.15, 0.03, 0.02, 0.004),
    (0.985, 0.925, 0.90, 0.81, 0.77, 0.44, 0.14, 0.025, 0.01, 0.005),
)
_RANKED = (
    (0.84, 0.75, 0.57, 0.42, 0.33, 0.30, 0.15, 0.10, 0.045, 0.009),
    (0.97, 0.81, 0.76, 0.52, 0.50, 0.32, 0.17, 0.08, 0.05, 0.004),
    (0.92, 0.81, 0.77, 0.55, 0.50, 0.30, 0.17, 0.075, 0.05, 0.008),
    (0.98, 0.885, 0.72, 0.56, 0.50, 0.375, 0.20, 0.08, 0.034, 0.008),
)
_GREEDY = (
    (0.94, 0.90, 0.70, 0.60, 0.42, 0.36, 0.25, 0.05, 0.03, 0.006),
    (0.97, 0.90, 0.85, 0.80, 0.45, 0.42, 0.23, 0.05, 0.04, 0.01),
    (0.95, 0.80, 0.60, 0.50, 0.42, 0.34, 0.25, 0.055, 0.035, 0.004),
    (0.995, 0.99, 0.99, 0.95, 0.82, 0.57, 0.28, 0.035, 0.004, 0.001),
)
