"""Copies of sessions for the server: of one moment, whole, in parts of a bounded size."""

from __future__ import annotations

import numpy as np
import pytest

from decoding.core.session_info import SessionState
from decoding.stores.session import Session
from decoding.stores.session_store import SessionLimits, SessionStore
from decoding.worker import session_copies
from decoding.worker.messages import SessionForgotten, SessionKept
from decoding.worker.session_copies import SessionCopies

PART_BYTES = 4096


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_copies, "PART_BYTES", PART_BYTES)


def used(store: SessionStore, name: str, num_tokens: int = 3000) -> Session:
    session = store.open("alice", name)
    session.replies.extend(np.arange(num_tokens, dtype=np.int32), -1)
    session.acceptance_models(False)
    store.note_use([session])
    return session


def new_store() -> SessionStore:
    return SessionStore(SessionLimits(2**20, 2**24, 2**24))


def joined(parts: list[SessionKept]) -> SessionState:
    state = SessionState("alice", parts[0].state.session_id, {})
    for part in parts:
        state = state.with_arrays(part.state.stores)
    return state


def test_a_copy_is_of_the_moment_when_it_began_and_its_parts_are_bounded() -> None:
    store = new_store()
    session = used(store, "a")
    before = session.state()
    copies, parts = SessionCopies(store), []
    while news := copies.take():
        [part] = news
        assert isinstance(part, SessionKept)
        parts.append(part)
        session.replies.extend(np.zeros(10, np.int32), -1)
    assert len(parts) > 3
    assert joined(parts) == before != session.state()
    for part in parts:
        num_arrays = sum(len(arrays) for arrays in part.state.stores.values())
        assert num_arrays == 1 or part.state.num_bytes <= PART_BYTES
    assert [part.is_first for part in parts] == [True, *(False for _ in parts[1:])]
    assert [part.is_last for part in parts] == [*(False for _ in parts[1:]), True]


def test_nothing_goes_out_of_a_session_that_was_forgotten_or_replaced_meanwhile() -> None:
    store = new_store()
    copies = SessionCopies(store)
    used(store, "a")
    [first] = copies.take()
    assert isinstance(first, SessionKept)
    assert (first.is_first, first.is_last) == (True, False)
    store.delete("alice", "a")
    used(store, "b")
    forgotten, part = copies.take()
    assert forgotten == SessionForgotten(tenant="alice", session_id="a")
    assert isinstance(part, SessionKept)
    assert (part.is_first, part.state.session_id) == (True, "b")
    other = used(new_store(), "b", 5000).state()
    store.restore(other, 10_000, replaces=True)
    assert copies.take() == [], "the server has the one that replaced it"


def test_a_session_that_holds_nothing_is_one_part() -> None:
    store = new_store()
    store.open("alice", "a")
    assert SessionCopies(store).take() == [SessionKept(state=SessionState("alice", "a", {}))]
