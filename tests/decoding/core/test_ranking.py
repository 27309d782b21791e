"""The places of the largest numbers are numpy's, the earlier first of equals."""

import numpy as np
import pytest

from decoding.core.ranking import places_of_best, ranked


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 301])
def test_places_are_ranked_as_a_stable_sort_ranks_them(count: int) -> None:
    random = np.random.default_rng(count)
    for numbers in (random.random(count).astype(np.float32), random.integers(0, 9, count).astype(np.int32)):
        order = np.argsort(-numbers, kind="stable")
        assert ranked(numbers).tolist() == order.tolist()
        for num_best in (0, 1, count // 2, count, count + 1):
            assert places_of_best(numbers, num_best).tolist() == sorted(order[:num_best].tolist())
