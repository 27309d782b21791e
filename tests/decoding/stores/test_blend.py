"""Old and new successors are weighed by a share, ranked, and cut to ten."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.stores.blend import allocate_merged, blend
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorTable
from tests.decoding.stores.tables import successors_of


def blended(rows: list[tuple[dict[int, float], float]]) -> dict[int, float]:
    """What an entry holds after rows of successors, each with its share."""
    table = SuccessorTable(2**10, first_sets=1)
    merged = allocate_merged()
    for law, share in rows:
        ids, probabilities = np.array(list(law), np.int32), np.array(list(law.values()), np.float32)
        blend(table.arrays, 0, ids, probabilities, np.float32(share), merged)
    ids, probabilities = successors_of(table, 0)
    assert np.all(table.arrays.ids[0, len(ids) :] == NO_TOKEN)
    assert np.all(table.arrays.probabilities[0, len(ids) :] == 0)
    return dict(zip(ids.tolist(), probabilities.tolist(), strict=True))


def test_blending_is_the_mean_of_both_sides_cut_to_ten() -> None:
    random = np.random.default_rng(6)
    expected: dict[int, float] = {}
    rows = []
    for share in (1.0, 0.5, 0.25, 0.5, 1.0, 0.1, 0.9, 0.5):
        width = int(random.integers(1, NUM_SUCCESSORS + 1))
        weights = np.sort(random.random(width))[::-1].tolist()
        law = dict(zip(random.permutation(25)[:width].tolist(), weights, strict=True))
        rows.append((law, share))
        old = {} if share == 1 else expected
        mean = {token: (1 - share) * old.get(token, 0) + share * law.get(token, 0) for token in old | law}
        expected = dict(sorted(mean.items(), key=lambda item: -item[1])[:NUM_SUCCESSORS])
        found = blended(rows)
        assert list(found) == list(expected)
        assert found == pytest.approx(expected, rel=1e-5)


def test_a_share_of_one_forgets_what_the_entry_held() -> None:
    rows = [({1: 0.5, 2: 0.3}, 1.0), ({3: 0.2}, 1.0)]
    assert list(blended(rows)) == [3]


def test_what_weighs_the_same_stays_in_order_and_what_weighs_nothing_is_dropped() -> None:
    assert list(blended([({1: 0.25, 2: 0.25, 3: 0.5, 4: 0.0}, 1.0)])) == [3, 1, 2]
