"""What steps take beside their forwards is learned from steps that differ, whatever else slows them for a while."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from decoding.costs.step_fit import EVERY, Beside, StepFit, StepKind

TRUTH = Beside(step=4e-4, request=1e-4, look=1e-4, tree=2e-4, node=5e-5, harvest=2e-5, round=1e-4)
FORWARD = 2e-3


def some_kind(random: np.random.Generator) -> StepKind:
    requests = int(random.integers(1, 9))
    trees = int(random.integers(0, requests + 1))
    nodes = trees * int(random.integers(1, 12))
    harvested = int(random.integers(0, 2)) * (nodes + trees)
    rounds = int(random.integers(0, 3))
    looks = max(trees, int(random.integers(0, 2)) * requests)  # where there is no tree, all look, or none
    return StepKind(requests, looks, trees, nodes, harvested, rounds)


def learned(fit: StepFit, seconds: Callable[[StepKind], float], num_steps: int) -> Beside:
    random = np.random.default_rng(0)
    for _ in range(num_steps):
        kind = some_kind(random)
        if fit.note(kind, FORWARD, seconds(kind)):
            fit.fit()
    return fit.beside


def true_seconds(kind: StepKind) -> float:
    return FORWARD + TRUTH.step + float(np.dot(kind, TRUTH[1:]))


def test_it_is_learned_from_the_first_steps() -> None:
    assert learned(StepFit(Beside()), true_seconds, 4 * EVERY) == pytest.approx(TRUTH, rel=0.35)


def test_slow_steps_move_little() -> None:
    random = np.random.default_rng(1)

    def seconds(kind: StepKind) -> float:
        is_slow = random.random() < 0.15
        return true_seconds(kind) * (10.0 if is_slow else random.uniform(0.95, 1.05))

    assert learned(StepFit(TRUTH), seconds, 8 * EVERY) == pytest.approx(TRUTH, rel=0.25)


def test_on_a_machine_that_is_slow_for_long_all_is_dearer_alike() -> None:
    slow = learned(StepFit(TRUTH), lambda kind: 2 * true_seconds(kind), 64 * EVERY)
    assert slow == pytest.approx((2 * TRUTH.step + FORWARD, *(2 * np.array(TRUTH[1:]))), rel=0.1)


def test_what_the_latest_steps_do_not_tell_is_forgotten_slowly() -> None:
    fit, plain = StepFit(TRUTH), StepKind(1)

    def run_plain(num_steps: int) -> None:
        for _ in range(num_steps):
            if fit.note(plain, FORWARD, 1.3 * true_seconds(plain)):
                fit.fit()

    run_plain(4 * EVERY)
    assert fit.beside.step + fit.beside.request == pytest.approx(1.3 * true_seconds(plain) - FORWARD, rel=0.1)
    assert np.array(fit.beside[2:]) == pytest.approx(0.9**4 * np.array(TRUTH[2:]))
    run_plain(60 * EVERY)
    assert max(fit.beside[2:]) < 0.02 * min(TRUTH)


def test_nothing_is_less_than_free() -> None:
    fit = StepFit(TRUTH)
    assert min(learned(fit, lambda kind: FORWARD * (1 - 0.01 * kind.nodes), 4 * EVERY)) >= 0.0
    StepFit(Beside()).fit()
