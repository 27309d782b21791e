"""A session that goes on in another process drafts there what it would have here: a restart costs no acceptance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from decoding.core.stats import DraftCounts
from decoding.costs.price import CostCurve
from decoding.engine.engine import Engine
from tests.decoding.engine.test_engine import GREEDY, finish, new_engine, prompt_of, request_of
from tests.models import VOCAB_SIZE

COSTS = CostCurve(base=1e-3, token=3e-4, key=0.0)  # so that not every tree is worth its price
SAMPLING = replace(GREEDY, max_tokens=150)


def counts_of(engine: Engine, session: str, seed: int) -> DraftCounts:
    """Of one reply by `auto`, to a prompt that only its seed knows."""
    asked = request_of(f"{session}-{seed}", prompt_of(60, seed), SAMPLING, "auto")
    asked.session_id = session
    engine.add(asked)
    return finish(engine)[asked.id].counts


def test_a_request_drafts_after_a_restart_what_it_would_have_drafted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = new_engine(), new_engine()
    for engine in (here, there):  # which learn from their steps otherwise
        monkeypatch.setattr(engine.costs, "curve", COSTS)
        monkeypatch.setattr(engine.costs, "note_step", lambda *_: None)
    counts_of(here, "kept", 0)
    state = here.sessions.copy("", "kept")
    assert state is not None
    there.sessions.restore(state, VOCAB_SIZE)
    before, after = counts_of(here, "kept", 1), counts_of(there, "kept", 1)
    assert after == before
    assert 0 < before.accepted < before.drafted
    assert counts_of(there, "fresh", 1) != before, "what a session remembers makes no difference here"
