"""What a draft model's candidate is worth before a request has shown it: measured rates by evidence.

Owns the priors; the running estimates are `beliefs.Beliefs`. Knows nothing of trees.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.drafting.draft_model.growth import NUM_CLASSES
from decoding.drafting.tree.beliefs import Beliefs

_PRIOR_WEIGHT = 16.0  # how many observations the prior counts for

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


def start_model_beliefs(temperature: float) -> Beliefs:
    """The priors of a request at `temperature`; what its own text changes is learned as it runs."""
    chances: NDArray[np.float32] = np.array(_SAMPLED if temperature > 0 else _GREEDY, np.float32).ravel()
    assert len(chances) == NUM_CLASSES, len(chances)
    tried = np.full(NUM_CLASSES, _PRIOR_WEIGHT, np.float32)
    return Beliefs(chances * tried, tried, chances)
