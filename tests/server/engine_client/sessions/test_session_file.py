"""A session's bytes are read as they were written, also those of the format before this one, or refused."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import pytest

from decoding.core.session_info import SessionState
from decoding.stores.acceptance_model import NUM_STANCES
from decoding.stores.evidence import NUM_CLASSES, NUM_SOURCES
from decoding.stores.session import Session
from decoding.stores.session_store import SessionLimits, SessionStore
from server.engine_client.sessions.session_file import seal, unseal

VOCABULARY = 1000
MODEL, PLACE = "a model", "a place"


def store() -> SessionStore:
    return SessionStore(SessionLimits(2**18, 2**24, 2**24))


def taught_session() -> Session:
    session = store().open("alice", "chat")
    session.replies.extend(np.arange(40, dtype=np.int32), -1)
    session.ngrams.harvest(
        np.arange(4, dtype=np.int32)[None], np.arange(10, dtype=np.int32)[None], np.full((1, 10), 0.05, np.float32)
    )
    greedy, _ = session.acceptance_models(False)
    greedy.asked_rate[:] = 0.75, 31.0
    greedy.hit_rate[:] = 0.5, 20.0
    return session


def of_form_8(state: SessionState, asked_rate: tuple[float, float]) -> bytes:
    """As a server of version 8 wrote it: where the asked rate stands now a model had five numbers of its probes, then
    how often the likeliest token's chance was in each sixteenth."""
    stores = dict(state.stores)
    for name in ("greedy", "sampled"):
        if name in stores:
            *same, _ = stores[name]
            probes = np.array((0.9, asked_rate[0], 1.5, 1.25, asked_rate[1]), np.float32)
            stores[name] = [*same, probes.tobytes(), np.full(16, 1 / 16, np.float32).tobytes()]
    content = msgspec.msgpack.encode({"model": MODEL, "stores": stores})
    return b"gander session 8\n" + hashlib.sha256(PLACE.encode() + b"\0" + content).digest() + content


def test_a_session_is_read_as_it_was_written() -> None:
    state = taught_session().state()
    assert unseal(seal(state, MODEL, PLACE), MODEL, "alice", "chat", PLACE) == state


def test_a_session_of_the_format_before_is_read_with_all_that_it_had_learned() -> None:
    session = taught_session()
    session.acceptance_models(True)
    state = unseal(of_form_8(session.state(), (0.75, 31.0)), MODEL, "alice", "chat", PLACE)
    restored = store()
    restored.restore(state, VOCABULARY)
    own, _ = restored.open("alice", "chat").acceptance_models(False)
    assert own.asked_rate.tolist() == [0.75, 31.0]
    assert own.hit_rate.tolist() == [0.5, 20.0]
    assert state.stores["greedy"] == session.state().stores["greedy"]
    assert state.stores["ngrams"] == session.state().stores["ngrams"]
    assert state.stores["replies"] == session.state().stores["replies"]
    sampled, _ = restored.open("alice", "chat").acceptance_models(True)
    assert sampled.asked_rate.tolist() == [0.75, 31.0]


def test_the_format_before_is_what_it_was() -> None:
    """Sizes in bytes of what version 8 wrote of an untouched acceptance model, which no later change may move."""
    session = store().open("alice", "chat")
    session.acceptance_models(False)
    state = unseal(of_form_8(session.state(), (0.5, 4.0)), MODEL, "alice", "chat", PLACE)
    sizes = [len(array) // 4 for array in state.stores["greedy"]]
    assert sizes == [NUM_CLASSES] * 3 + [NUM_STANCES * NUM_SOURCES] + [2, 2, 2]


@pytest.mark.parametrize("written", ["now", "before"])
def test_what_was_changed_moved_or_is_of_another_model_or_version_is_refused(written: str) -> None:
    state = taught_session().state()
    whole = seal(state, MODEL, PLACE) if written == "now" else of_form_8(state, (0.5, 4.0))
    assert unseal(whole, MODEL, "alice", "chat", PLACE).stores.keys() == state.stores.keys()
    for data, model, place in (
        (whole[:-1], MODEL, PLACE),
        (whole[:-1] + bytes([whole[-1] ^ 1]), MODEL, PLACE),
        (whole, MODEL, "elsewhere"),
        (whole, "another model", PLACE),
        (b"gander session 7\n" + whole[17:], MODEL, PLACE),
    ):
        with pytest.raises(ValueError, match=r"^it (is|was) "):
            unseal(data, model, "alice", "chat", place)
