"""A method pays for its own rows of a step, not for a prompt that runs beside it."""

from __future__ import annotations

from decoding.stores.earnings import FORGETTING
from tests.decoding.engine.test_engine import GREEDY, finish, new_engine, prompt_of, request_of


def test_a_prompt_beside_a_decoding_request_is_not_charged_to_its_method() -> None:
    engine = new_engine(max_batch_rows=160)
    engine.add(request_of("decodes", prompt_of(10), GREEDY))
    for _ in range(4):
        engine.step()
    earned = engine.sessions.open("", "decodes").ledger(is_sampled=False).methods["none"]
    engine.add(request_of("prompt", prompt_of(310, 1), GREEDY))
    for _ in range(2):  # chunks that end before the root
        before = earned.seconds
        stats = engine.step().stats
        assert stats is not None
        assert stats.prefill_rows == 144
        charged = earned.seconds - (1 - FORGETTING) * before
        share = engine.costs.curve.shares([1, 144], [14, 0])[0]
        assert 0 < charged <= 1.05 * share * stats.step_seconds < 0.6 * stats.step_seconds
    finish(engine)
