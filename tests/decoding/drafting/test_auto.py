"""Auto lets the method draft that earns most in its session, after a short trial of each."""

from __future__ import annotations

from collections.abc import Mapping

from decoding.drafting.auto import REVIEW_STEPS, candidates, choose
from decoding.stores.earnings import Ledger, Promise
from decoding.stores.session_store import SessionStore

METHODS = ["spine", "stand", "dynamic"]


def earn(ledger: Ledger, method: str, rate: float, steps: int) -> None:
    for _ in range(steps):
        ledger.note(method, 3, 3 / rate)


def run(ledger: Ledger, rates: Mapping[str, float], steps: int) -> dict[str, int]:
    """Let auto choose for so many steps, each method earning its rate; how often each drafted."""
    used = dict.fromkeys(rates, 0)
    for _ in range(steps // REVIEW_STEPS):
        method = choose(list(rates), ledger).method
        earn(ledger, method, rates[method], REVIEW_STEPS)
        used[method] += REVIEW_STEPS
    return used


def test_dynamic_needs_a_draft_model() -> None:
    assert candidates(has_draft_model=False) == ["spine"]
    assert candidates(has_draft_model=True) == ["spine", "dynamic"]


def test_the_one_method_that_fits_is_taken() -> None:
    choice = choose(["spine"], Ledger())
    assert (choice.method, choice.kind) == ("spine", "only")


def test_stand_is_tried_when_its_store_promises_more_than_is_accepted() -> None:
    ledger = Ledger()
    earn(ledger, "spine", 100, 16)  # three tokens a step
    ledger.promise.note(60, 100)  # 2.5 tokens a step
    assert choose(["spine"], ledger).method == "spine"
    ledger.promise.note(970, 1000)
    assert choose(["spine"], ledger).method == "stand"
    earn(ledger, "stand", 50, REVIEW_STEPS)
    assert choose(["spine"], ledger).method == "spine"
    earn(ledger, "spine", 100, 100)
    assert choose(["spine"], ledger).method == "stand", "a promise that lasts is worth another trial"
    earn(ledger, "stand", 700, REVIEW_STEPS)
    assert choose(["spine"], ledger).kind == "best"
    assert choose(["spine"], ledger).method == "stand"


def test_a_promise_is_the_share_of_late_tokens_foretold() -> None:
    promise = Promise()
    assert promise.tokens_per_step == 1
    for _ in range(300):
        promise.note(1, 2)
    assert abs(promise.tokens_per_step - 2) < 0.1
    for _ in range(300):
        promise.note(4, 4)
    assert promise.tokens_per_step == 20


def test_every_method_is_tried_and_then_the_best_one_drafts() -> None:
    ledger = Ledger()
    assert choose(METHODS, ledger).method == "spine"
    earn(ledger, "spine", 100, 8)
    assert choose(METHODS, ledger).method == "stand"
    earn(ledger, "stand", 90, 8)
    assert choose(METHODS, ledger).method == "dynamic"
    earn(ledger, "dynamic", 150, 8)
    choice = choose(METHODS, ledger)
    assert (choice.method, choice.kind) == ("dynamic", "best")
    assert "spine 100, stand 90, dynamic 150" in choice.reason


def test_a_trial_is_as_short_as_it_is_hopeless() -> None:
    assert run(Ledger(), {"spine": 100, "dynamic": 20}, 200)["dynamic"] == REVIEW_STEPS
    assert 2 * REVIEW_STEPS <= run(Ledger(), {"spine": 100, "dynamic": 90}, 200)["dynamic"] < 100


def test_exploring_is_bounded_and_finds_a_method_that_has_become_better() -> None:
    ledger = Ledger()
    used = run(ledger, {"spine": 100, "dynamic": 50}, 8000)
    assert 0 < used["dynamic"] < 0.04 * 8000
    used = run(ledger, {"spine": 100, "dynamic": 400}, 8000)
    assert used["dynamic"] > 7000


def test_a_rate_is_that_of_late_steps() -> None:
    ledger = Ledger()
    earn(ledger, "spine", 100, 400)
    earn(ledger, "spine", 10, 400)
    assert 9 < ledger.of("spine").rate < 12
    assert ledger.of("dynamic").rate == 0


def test_sessions_and_kinds_of_request_earn_for_themselves() -> None:
    store = SessionStore(4, 2**18, 100.0)
    store.open("a", "1").ledger(is_sampled=True).note("stand", 3, 0.1)
    assert store.open("a", "1").ledger(is_sampled=True).of("stand").steps == 1
    assert store.open("a", "1").ledger(is_sampled=False).of("stand").steps == 0
    assert store.open("b", "1").ledger(is_sampled=True).of("stand").steps == 0
