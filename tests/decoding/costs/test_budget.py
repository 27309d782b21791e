"""A node is drafted when it is likelier than its price."""

import numpy as np
import pytest

from decoding.costs.curve import LEAST_ROW_SHARE, CostCurve, fit_cost_curve
from decoding.costs.price import Pace, node_price, token_rate


def test_the_fit_finds_the_curve_that_made_the_samples() -> None:
    curve = CostCurve(base=2e-3, row=5e-5, key=1e-7)
    samples = [(n, c, curve.step_seconds([n], [c])) for n in (1, 4, 16, 64) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert (fitted.base, fitted.row, fitted.key) == pytest.approx((curve.base, curve.row, curve.key), rel=1e-6)


def test_no_coefficient_of_a_fit_is_negative_and_no_row_is_free() -> None:
    samples = [(n, c, 1e-3 - 1e-7 * n - 1e-9 * n * c) for n in (1, 8, 32) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert min(fitted.base, fitted.key) >= 0
    assert fitted.row >= LEAST_ROW_SHARE * fitted.base


@pytest.mark.parametrize("row", [0.003, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("decay", [0.5, 0.8, 0.95])
def test_pricing_nodes_settles_at_the_size_of_most_tokens_per_second(row: float, decay: float) -> None:
    """Nodes of chances decay, decay**2, ... are drafted while worth their price: the ratio is maximised."""
    curve = CostCurve(base=1.0, row=row, key=0.0)
    chances = 0.9 * decay ** np.arange(64)

    def tokens_per_second(num_nodes: int) -> float:
        return float((1 + chances[:num_nodes].sum()) / curve.step_seconds([num_nodes + 1], [0]))

    pace = Pace()
    for _ in range(300):
        price = node_price(curve, token_rate(curve, [pace], [0]), 0)
        num_nodes = int((chances > price).sum())
        pace.update(num_nodes, 1 + chances[:num_nodes].sum())
    best = max(tokens_per_second(n) for n in range(65))
    assert tokens_per_second(num_nodes) == pytest.approx(best, rel=0.01)


def test_a_row_as_dear_as_a_step_costs_a_whole_token() -> None:
    curve = CostCurve(base=0.0, row=1.0, key=0.0)
    assert node_price(curve, token_rate(curve, [Pace()], [10]), 10) == pytest.approx(1.0)


def test_prices_rise_as_the_batch_grows() -> None:
    curve = CostCurve(base=1.0, row=0.03, key=0.0)
    assert token_rate(curve, [Pace()] * 16, [10] * 16) > 3 * token_rate(curve, [Pace()], [10])


def test_a_long_context_makes_its_own_nodes_dearer() -> None:
    curve = CostCurve(base=1.0, row=0.03, key=0.001)
    rate = token_rate(curve, [Pace(), Pace()], [10, 1000])
    assert node_price(curve, rate, 1000) == pytest.approx(node_price(curve, rate, 10) * 1.03 / 0.04)


def test_a_pace_below_plain_decoding_does_not_make_nodes_cheap() -> None:
    curve = CostCurve(base=1.0, row=0.5, key=0.0)
    wasteful = Pace(emitted=1.0, rows=64.0)
    assert node_price(curve, token_rate(curve, [wasteful], [0]), 0) == pytest.approx(0.5 / 1.5)


def test_drafting_must_earn_its_own_time_too() -> None:
    pace = Pace(drafted=10.0, accepted=1.0)
    assert pace.pays(node_price=0.05, draft_price=0.4)
    assert not pace.pays(node_price=0.05, draft_price=0.6)
    assert not pace.pays(node_price=0.11, draft_price=0.0)


def test_plain_steps_change_nothing_of_what_trees_are_believed_to_earn() -> None:
    pace = Pace(drafted=10.0, accepted=3.0)
    for _ in range(100):
        pace.update(0, 1)
    assert (pace.drafted, pace.accepted) == (10.0, 3.0)
    assert pace.emitted == pytest.approx(1.0, abs=1e-3)


def test_plain_steps_are_counted_since_the_last_tree() -> None:
    pace = Pace()
    for _ in range(5):
        pace.update(0, 1)
    assert pace.plain_steps == 5
    pace.update(3, 1)
    assert pace.plain_steps == 0


def test_plain_seconds_are_those_of_one_row_per_request() -> None:
    curve = CostCurve(base=1.0, row=0.1, key=0.01)
    assert curve.plain_seconds(6, [10, 20]) == pytest.approx(3 * (1.0 + 0.2 + 0.3))
