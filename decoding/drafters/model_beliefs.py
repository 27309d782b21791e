"""What a draft model's candidate is worth before a request has shown it: measured rates by evidence.

Owns the priors; the running estimates are `beliefs.Beliefs`. Knows nothing of trees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.drafters.beliefs import Beliefs
from decoding.drafters.model_growth import NUM_CLASSES

_PRIOR_WEIGHT = 16.0  # how many observations the prior counts for

# Measured on the bundled pair, rounded: a node's best child, then the others, by weight from 0.999 and more down.
_PRIORS = (
    (0.99, 0.97, 0.95, 0.92, 0.87, 0.76, 0.6, 0.45, 0.3, 0.2, 0.1, 0.05),
    (0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.4, 0.3, 0.18, 0.09, 0.04, 0.01),
)


def start_model_beliefs() -> Beliefs:
    chances: NDArray[np.float32] = np.array(_PRIORS, np.float32).ravel()
    assert len(chances) == NUM_CLASSES, len(chances)
    tried = np.full(NUM_CLASSES, _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)
