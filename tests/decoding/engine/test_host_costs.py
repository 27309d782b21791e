"""What the host takes, by medians of the latest steps. No clock is read."""

from __future__ import annotations

import pytest

from decoding.engine.step_costs import FORGOTTEN_AFTER, MEDIAN_OF, HostCosts, HostStep

PLAIN, PROBE, TREE, DRAFTING, HARVEST = 20e-6, 5e-6, 60e-6, 40e-6, 1e-6  # seconds of each request, or node


def step_of(num_requests: int, num_probed: int = 0, num_trees: int = 0, num_harvested: int = 0) -> HostStep:
    probing = PROBE * num_probed
    seconds = PLAIN * num_requests + probing + TREE * num_trees + HARVEST * num_harvested
    return HostStep(seconds, num_requests, num_probed, probing, num_trees, DRAFTING * num_trees, num_harvested)


def test_what_a_plain_step_a_probe_and_a_tree_take_is_told_apart() -> None:
    costs = HostCosts()
    for number in range(4 * MEDIAN_OF):
        costs.note_step(step_of(8, num_probed=4, num_trees=3 * (number % 2), num_harvested=20 * (number % 2)), HARVEST)
    assert (costs.plain, costs.probe, costs.tree) == pytest.approx((8 * PLAIN, PROBE, TREE))
    costs.note_step(step_of(8, num_probed=4, num_trees=3)._replace(seconds=9.0, probing=4.0), HARVEST)
    assert (costs.plain, costs.probe, costs.tree) == pytest.approx((8 * PLAIN, PROBE, TREE)), "one slow step"


def test_where_every_step_drafts_a_tree_takes_what_is_seen_of_it() -> None:
    costs = HostCosts()
    for _ in range(MEDIAN_OF):
        costs.note_step(step_of(8, num_trees=8))
    assert costs.tree == pytest.approx(DRAFTING)
    assert costs.plain == pytest.approx(8 * (PLAIN + TREE - DRAFTING))


def test_prices_are_those_of_the_present_load() -> None:
    costs = HostCosts()
    for num_requests in (1, 64):
        for number in range(4 * MEDIAN_OF):
            costs.note_step(step_of(num_requests, num_trees=number % 2))
    assert costs.plain == pytest.approx(64 * PLAIN)
    assert costs.tree == pytest.approx(TREE)


def test_what_drafting_took_is_forgotten_while_nobody_drafts() -> None:
    costs = HostCosts()
    costs.note_step(step_of(4))
    for _ in range(MEDIAN_OF):
        costs.note_step(step_of(4, num_trees=4)._replace(seconds=1.0))
    busy = costs.tree
    assert busy == pytest.approx(0.25, rel=0.01)
    for _ in range(3 * FORGOTTEN_AFTER):
        costs.note_step(step_of(4))
    assert costs.tree == pytest.approx(busy / 8)
