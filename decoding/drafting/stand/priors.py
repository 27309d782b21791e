"""What speaks for a candidate of the n-gram store, and what that was worth elsewhere.

Owns the classes of such evidence and their measured rates; the running estimates are `beliefs.Beliefs`. Knows nothing
of trees.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.drafting.tree.beliefs import step_of
from decoding.drafting.tree.candidates import COUPLED
from decoding.stores.ngram import LONGEST_NGRAM
from decoding.stores.successor_table import SuccessorArrays

_NUM_SEEN_CLASSES = 4  # n-grams known from rejected rows alone, from one accepted row, from two, from three or more
_WEIGHT_BOUNDS = (0.99, 0.95, 0.85, 0.7, 0.5, 0.3, 0.15, 0.06, 0.02)
_NUM_WEIGHT_CLASSES = len(_WEIGHT_BOUNDS) + 1


def prior_chances(temperature: float, order: int) -> NDArray[np.float32]:
    """float32 [C], in the order of `candidate_class`, of a request at `temperature` with candidates in `order`.

    From the 13 rows below: no short n-gram is unseen, so those that would be take the rates of the ones seen once.
    """
    rates = np.array(_COUPLED if order == COUPLED and temperature > 0 else _RANKED, np.float32)
    short = rates[:-_NUM_SEEN_CLASSES].reshape(LONGEST_NGRAM - 1, -1, _NUM_WEIGHT_CLASSES)
    longest = rates[-_NUM_SEEN_CLASSES:]
    chances = np.concatenate((np.concatenate((short[:, :1], short), axis=1), longest[None])).ravel()
    assert len(chances) == LONGEST_NGRAM * _NUM_SEEN_CLASSES * _NUM_WEIGHT_CLASSES, len(chances)
    return chances


@nb.njit(cache=True, forceinline=True)
def evidence_of(table: SuccessorArrays, entry: int, ngram: int) -> int:
    """What speaks for an entry's candidates: its length n and how often it was seen."""
    return (ngram - 1) * _NUM_SEEN_CLASSES + min(table.seen[entry], _NUM_SEEN_CLASSES - 1)


@nb.njit(cache=True, forceinline=True)
def candidate_class(evidence: int, weight: float) -> int:
    """The class of a candidate: the evidence of the n-gram that gave it and its weight in ten steps."""
    return int(evidence * _NUM_WEIGHT_CLASSES + step_of(weight, _WEIGHT_BOUNDS))


# Measured on the bundled model's word problems and stories in cold and warm sessions: coupled at temperature 0.6 and 1,
# ranked (greedy requests take these too) at 0.6. At every position of a reply: which of the ten candidates was the
# target's. One column for each weight class from 0.99 and more down to less than 0.02. Rows: 1-, 2- and 3-grams seen
# once, twice and more often; 4-grams known from rejected rows alone, from one accepted row, from two and from more.
_COUPLED = (
    (0.723, 0.342, 0.342, 0.262, 0.262, 0.262, 0.051, 0.051, 0.051, 0.025),
    (0.656, 0.574, 0.475, 0.475, 0.407, 0.231, 0.086, 0.051, 0.029, 0.019),
    (0.789, 0.537, 0.489, 0.334, 0.294, 0.254, 0.217, 0.107, 0.074, 0.023),
    (0.787, 0.55, 0.55, 0.411, 0.411, 0.206, 0.101, 0.051, 0.04, 0.018),
    (0.883, 0.586, 0.538, 0.475, 0.312, 0.3, 0.196, 0.117, 0.064, 0.0096),
    (0.845, 0.607, 0.6, 0.493, 0.458, 0.323, 0.173, 0.114, 0.052, 0.016),
    (0.786, 0.468, 0.463, 0.463, 0.281, 0.226, 0.1, 0.1, 0.038, 0.013),
    (0.754, 0.619, 0.619, 0.354, 0.354, 0.183, 0.183, 0.165, 0.073, 0.018),
    (0.795, 0.532, 0.482, 0.34, 0.282, 0.226, 0.141, 0.129, 0.077, 0.021),
    (0.858, 0.764, 0.565, 0.565, 0.518, 0.382, 0.178, 0.084, 0.034, 0.012),
    (0.984, 0.889, 0.889, 0.889, 0.739, 0.326, 0.049, 0.049, 0.0097, 0.0014),
    (0.995, 0.949, 0.884, 0.884, 0.841, 0.398, 0.105, 0.049, 0.022, 0.001),
    (0.995, 0.86, 0.768, 0.768, 0.547, 0.468, 0.198, 0.134, 0.088, 0.001),
)
_RANKED = (
    (0.666, 0.588, 0.295, 0.27, 0.161, 0.161, 0.046, 0.046, 0.046, 0.023),
    (0.514, 0.514, 0.42, 0.42, 0.414, 0.353, 0.127, 0.071, 0.027, 0.027),
    (0.861, 0.534, 0.401, 0.401, 0.31, 0.31, 0.196, 0.069, 0.069, 0.023),
    (0.729, 0.364, 0.364, 0.364, 0.217, 0.196, 0.196, 0.065, 0.065, 0.022),
    (0.867, 0.607, 0.607, 0.607, 0.37, 0.37, 0.095, 0.023, 0.012, 0.012),
    (0.832, 0.762, 0.641, 0.519, 0.519, 0.306, 0.159, 0.095, 0.041, 0.015),
    (0.75, 0.453, 0.423, 0.423, 0.344, 0.344, 0.196, 0.047, 0.03, 0.0089),
    (0.902, 0.569, 0.309, 0.253, 0.253, 0.253, 0.253, 0.253, 0.089, 0.011),
    (0.799, 0.443, 0.289, 0.289, 0.255, 0.22, 0.187, 0.1, 0.025, 0.025),
    (0.882, 0.503, 0.405, 0.405, 0.405, 0.33, 0.223, 0.086, 0.067, 0.015),
    (0.988, 0.73, 0.73, 0.408, 0.408, 0.408, 0.26, 0.086, 0.071, 0.0015),
    (0.995, 0.829, 0.829, 0.616, 0.616, 0.339, 0.179, 0.148, 0.033, 0.001),
    (0.995, 0.841, 0.801, 0.677, 0.528, 0.48, 0.223, 0.087, 0.0052, 0.001),
)
