"""Trees are as large as this machine and this request's luck make worth while."""

from dataclasses import replace

import pytest

from decoding.budget import (
    INITIAL_GAIN,
    PROBE_INTERVAL,
    PROBE_NODES,
    Candidate,
    CostCurve,
    YieldEstimate,
    choose_budgets,
    fit_cost_curve,
)

CHEAP_ROWS = CostCurve(base=1.0, row=0.001, key=0.0)
DEAR_ROWS = CostCurve(base=0.1, row=1.0, key=0.0)


def tokens_per_second(curve: CostCurve, candidate: Candidate, budget: int) -> float:
    return (1 + candidate.estimate.expected_accepted(budget)) / curve.step_seconds([budget + 1], [candidate.context])


def test_the_fit_finds_the_curve_that_made_the_samples() -> None:
    curve = CostCurve(base=2e-3, row=5e-5, key=1e-7)
    samples = [(n, c, curve.step_seconds([n], [c])) for n in (1, 4, 16, 64) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert (fitted.base, fitted.row, fitted.key) == pytest.approx((curve.base, curve.row, curve.key), rel=1e-6)


def test_no_coefficient_of_a_fit_is_negative() -> None:
    samples = [(n, c, 1e-3 + 1e-5 * n - 1e-8 * n * c) for n in (1, 8, 32) for c in (32, 512)]
    fitted = fit_cost_curve(samples)
    assert min(fitted.base, fitted.row, fitted.key) >= 0


@pytest.mark.parametrize("row", [0.001, 0.01, 0.03, 0.1, 0.3])
@pytest.mark.parametrize("gain", [0.05, 0.35, 1.0])
def test_a_lone_request_gets_the_budget_of_most_tokens_per_second(row: float, gain: float) -> None:
    curve = CostCurve(base=1.0, row=row, key=0.0)
    candidate = Candidate(YieldEstimate(gain), context=100, limit=64)
    (budget,) = choose_budgets(curve, [candidate])
    best = max(tokens_per_second(curve, candidate, n) for n in range(65))
    assert tokens_per_second(curve, candidate, budget) >= 0.97 * best


def test_rows_that_cost_as_much_as_steps_are_not_drafted() -> None:
    assert choose_budgets(DEAR_ROWS, [Candidate(YieldEstimate(), 10, 64)]) == [0]


def test_trees_shrink_as_the_batch_grows() -> None:
    curve = CostCurve(base=1.0, row=0.03, key=0.0)
    alone = choose_budgets(curve, [Candidate(YieldEstimate(), 10, 64)])
    crowd = choose_budgets(curve, [Candidate(YieldEstimate(), 10, 64) for _ in range(16)])
    assert 0 <= max(crowd) < alone[0]


def test_one_unlucky_request_does_not_shrink_anothers_tree() -> None:
    curve = CostCurve(base=1.0, row=0.02, key=0.0)
    lucky = Candidate(YieldEstimate(gain=0.8), 10, 64)
    unlucky = Candidate(YieldEstimate(gain=0.01), 10, 64)
    with_unlucky, nothing = choose_budgets(curve, [lucky, unlucky])
    with_lucky, _ = choose_budgets(curve, [lucky, lucky])
    assert nothing == 0
    assert with_unlucky >= with_lucky


def test_a_fixed_budget_is_kept_up_to_the_limit() -> None:
    wanted = [Candidate(YieldEstimate(0.0), 10, 64, fixed=60), Candidate(YieldEstimate(), 10, 8, fixed=60)]
    assert choose_budgets(DEAR_ROWS, wanted) == [60, 8]


def test_a_request_that_stopped_drafting_tries_again_now_and_then() -> None:
    estimate = YieldEstimate(gain=0.0)
    candidate = Candidate(estimate, 10, 64)
    budgets = []
    for _ in range(2 * PROBE_INTERVAL + 2):
        (budget,) = choose_budgets(CHEAP_ROWS, [candidate])
        budgets.append(budget)
        estimate.update(budget, 0)
    assert budgets.count(PROBE_NODES) == 2
    assert set(budgets) == {0, PROBE_NODES}


def test_the_estimate_moves_towards_what_was_accepted() -> None:
    estimate = YieldEstimate()
    for _ in range(60):
        estimate.update(15, 6)
    assert estimate.expected_accepted(15) == pytest.approx(6, rel=0.01)
    assert replace(estimate).gain > INITIAL_GAIN


def test_plain_seconds_are_those_of_one_row_per_request() -> None:
    curve = CostCurve(base=1.0, row=0.1, key=0.01)
    assert curve.plain_seconds(6, [10, 20]) == pytest.approx(3 * (1.0 + 0.2 + 0.3))
