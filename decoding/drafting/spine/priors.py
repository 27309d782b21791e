"""What speaks for a token copied from context or taken from the adjacency table, and what that was worth elsewhere.

Owns the classes of such evidence and their measured rates; the running estimates are `beliefs.Beliefs`. Knows nothing
of trees.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.drafting.tree.beliefs import step_of

_SUFFIX_BOUNDS = (20, 12, 8, 6, 5, 4)  # tokens shared with the copied occurrence, which are at least 3
_SCORE_BOUNDS = (0.9, 0.75, 0.5, 0.3, 0.15, 0.07, 0.03, 0.01)
_NUM_SUFFIX_CLASSES = len(_SUFFIX_BOUNDS) + 1
_NUM_SCORE_CLASSES = len(_SCORE_BOUNDS) + 1
_NUM_AGREEMENTS = 4  # the copied token among the adjacency successors: first, another, absent; no entry
POOLED = _NUM_SUFFIX_CLASSES * _NUM_AGREEMENTS * 2  # every copied token, where confidence is left out
NUM_CONTEXT_CLASSES = POOLED + 1

# Acceptance rates measured by replays of the bundled model, rounded. Copied tokens by suffix from 3 to 20 and more,
# where the adjacency table has the token first, further down, not at all, or no entry; successors by tier and score.
_COPIED = (
    (0.55, 0.80, 0.82, 0.88, 0.92, 0.95, 0.98),
    (0.20, 0.27, 0.25, 0.50, 0.50, 0.60, 0.75),
    (0.20, 0.15, 0.12, 0.15, 0.20, 0.20, 0.40),
    (0.50, 0.60, 0.65, 0.70, 0.80, 0.85, 0.90),
)
_CONSENSUS_BONUS = (0.5, 0.1, 0.1, 0.5)  # of what is missing to 1, per agreement
_POOLED_CHANCE = 0.3  # the paper's initial spine acceptance
_SUCCESSORS = (
    (0.70, 0.58, 0.50, 0.30, 0.20, 0.11, 0.06, 0.03, 0.014),
    (0.88, 0.68, 0.50, 0.32, 0.22, 0.12, 0.06, 0.025, 0.008),
)


def prior_chances() -> NDArray[np.float32]:
    """float32 [C], in the order of `context_class` and `score_class`, at any temperature."""
    alone = np.array(_COPIED).T
    copied = np.stack((alone, alone + (1 - alone) * np.array(_CONSENSUS_BONUS)), axis=2)
    chances = np.concatenate((copied.ravel(), [_POOLED_CHANCE], np.ravel(_SUCCESSORS))).astype(np.float32)
    assert len(chances) == NUM_CONTEXT_CLASSES + 2 * _NUM_SCORE_CLASSES, len(chances)
    return chances


@nb.njit(cache=True)
def context_class(suffix_len: int, agreement: int, has_consensus: bool) -> int:
    """The class of a copied token; `agreement` as listed at _NUM_AGREEMENTS."""
    suffix_class = _NUM_SUFFIX_CLASSES - 1 - step_of(suffix_len, _SUFFIX_BOUNDS)
    return int((suffix_class * _NUM_AGREEMENTS + agreement) * 2 + (1 if has_consensus else 0))


@nb.njit(cache=True)
def score_class(score: float, is_bigram: bool) -> int:
    """The class of an adjacency successor: its tier and its stored probability in nine steps."""
    tier = _NUM_SCORE_CLASSES if is_bigram else 0
    return int(NUM_CONTEXT_CLASSES + tier + step_of(score, _SCORE_BOUNDS))
