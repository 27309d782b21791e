"""Auto drafts sampled requests with what their session has accepted most, and says so."""

from decoding.drafters import resolve
from decoding.drafters.auto import TRIAL_STEPS
from decoding.session import Acceptance, SessionStore


def after(steps: int, tokens_each: int) -> Acceptance:
    acceptance = Acceptance()
    for _ in range(steps):
        acceptance.note(tokens_each)
    return acceptance


def test_greedy_requests_get_spine_whatever_was_sampled_before() -> None:
    assert resolve("auto", 0.0, {"stand": after(500, 9), "spine": after(500, 1)})[0] == "spine"


def test_a_sampled_request_gets_spine_then_stand_then_the_better() -> None:
    assert resolve("auto", 0.7, {})[0] == "spine"
    assert resolve("auto", 0.7, {"spine": after(TRIAL_STEPS["spine"] - 1, 3)})[0] == "spine"
    tried = {"spine": after(2 * TRIAL_STEPS["spine"], 3)}
    assert resolve("auto", 0.7, tried)[0] == "stand"
    assert resolve("auto", 0.7, tried | {"stand": after(TRIAL_STEPS["stand"] // 2, 1)})[0] == "stand"
    for stand_tokens, spine_tokens, best in ((4, 3, "stand"), (2, 3, "spine")):
        measured = {"stand": after(400, stand_tokens), "spine": after(400, spine_tokens)}
        method, reason = resolve("auto", 0.7, measured)
        assert method == best
        assert f"stand {stand_tokens:.2f}, spine {spine_tokens:.2f}" in reason


def test_old_steps_count_less_and_less() -> None:
    acceptance = after(2000, 1)
    for _ in range(2000):
        acceptance.note(5)
    assert acceptance.tau > 4.9


def test_a_named_method_is_kept() -> None:
    assert resolve("lookup", 0.7, {}) == ("lookup", "requested")


def test_sessions_measure_for_themselves() -> None:
    store = SessionStore(4, 2**18, 100.0)
    store.open("a", "1").note_sampled("stand", 3)
    assert store.open("a", "1").sampled["stand"].steps == 1
    assert not store.open("b", "1").sampled


def test_the_steps_that_fill_the_store_do_not_decide() -> None:
    """A session of many samples of one problem: stand emits 1.5 tokens a step while cold, and 8 once it has seen it."""
    stand = Acceptance()
    for step in range(2 * TRIAL_STEPS["stand"]):
        stand.note(8 if step >= 64 else 1 + step % 2)
    assert resolve("auto", 0.7, {"spine": after(100, 4), "stand": stand})[0] == "stand"
