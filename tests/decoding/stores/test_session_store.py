"""Sessions keep to their tenant, their bytes and their time, and one tenant cannot drive out another's."""

from random import Random
from typing import Any

import numpy as np
import pytest

from decoding.core.session_info import SessionState
from decoding.stores.session import Session
from decoding.stores.session_store import ENTRY_BYTES, SessionLimits, SessionStore

VOCABULARY = 50


def store_at(times: list[float], room: int = 3, room_of_one: int | None = None) -> SessionStore:
    """room: for so many empty sessions in all, and of one tenant."""
    in_all, per_tenant = room * ENTRY_BYTES, (room_of_one or room) * ENTRY_BYTES
    return SessionStore(SessionLimits(2**20, per_tenant, in_all, time_to_live=100.0), clock=lambda: times[0])


def roomy_store(clock: list[float], per_tenant: int = 2**24, in_all: int = 2**25) -> SessionStore:
    return SessionStore(SessionLimits(2**20, per_tenant, in_all, time_to_live=100.0), clock=lambda: clock[0])


def names_of(store: SessionStore) -> list[tuple[str, str]]:
    return [(session.tenant, session.session_id) for session in store.list()]


def grow(store: SessionStore, session: Session, num_tokens: int) -> None:
    session.replies.extend(np.arange(num_tokens, dtype=np.int32), -1)
    store.note_use([session])


def test_the_same_name_of_another_tenant_is_another_session() -> None:
    store = roomy_store([0.0])
    first = store.open("alice", "chat")
    assert store.open("alice", "chat") is first
    assert store.open("bob", "chat") is not first
    assert store.open("bob", "chat").ngrams is not first.ngrams


def test_the_least_recently_used_session_goes_first() -> None:
    store = store_at([0.0])
    kept, gone = store.open("a", "1"), store.open("a", "2")
    store.open("a", "3")
    store.open("a", "1")
    store.open("a", "4")
    assert len(store) == 3
    assert store.open("a", "1") is kept
    assert store.open("a", "2") is not gone


def test_a_session_that_a_request_runs_on_is_not_the_least_recently_used() -> None:
    store = store_at([0.0])
    running = store.open("a", "1")
    for number in range(2, 10):
        store.open("a", str(number))
        store.note_use([running])
    assert store.open("a", "1") is running


def test_a_tenant_that_opens_many_drives_out_its_own() -> None:
    store = store_at([0.0], room=10)
    only = store.open("alice", "chat")
    for number in range(100):
        store.open("bob", str(number))
    assert [session.session_id for session in store.list("alice")] == ["chat"]
    assert store.open("alice", "chat") is only
    assert [session.session_id for session in store.list("bob")] == [str(number) for number in range(91, 100)]


def test_a_tenant_keeps_to_its_own_bytes_though_there_is_room() -> None:
    store = store_at([0.0], room=100, room_of_one=4)
    for number in range(10):
        store.open("bob", str(number))
    assert [session.session_id for session in store.list("bob")] == ["6", "7", "8", "9"]


def test_a_session_that_grows_drives_out_its_tenants_others_and_nobody_elses() -> None:
    store = roomy_store([0.0], per_tenant=2**19 + 2**16)
    for name in (("alice", "1"), ("alice", "2"), ("alice", "3"), ("bob", "old"), ("bob", "1"), ("bob", "2")):
        grow(store, store.open(*name), 20_000)
    growing = store.open("bob", "growing")
    assert ("bob", "old") in names_of(store)
    grow(store, growing, 20_000)
    bobs = [("bob", "1"), ("bob", "2"), ("bob", "growing")]
    assert names_of(store) == [("alice", "1"), ("alice", "2"), ("alice", "3"), *bobs]
    store.check_integrity()


def test_beyond_the_bytes_of_all_who_holds_most_loses() -> None:
    store = roomy_store([0.0], in_all=2**22)
    for number in range(10):
        grow(store, store.open("alice", str(number)), 5_000)
    assert len(store) > 8
    before = len(store.list("alice"))
    for number in range(10):
        grow(store, store.open("bob", str(number)), 5_000)
    alices, bobs = len(store.list("alice")), len(store.list("bob"))
    assert alices < before
    assert abs(alices - bobs) <= 1
    store.check_integrity()


def test_one_session_never_outgrows_what_its_tenant_may_hold() -> None:
    store = roomy_store([0.0], per_tenant=2**18, in_all=2**18)
    session = store.open("a", "1")
    assert session.ngrams.num_bytes > 0
    for _ in range(5):
        grow(store, session, 50_000)
    assert store.open("a", "1") is session
    store.check_integrity()


def test_of_tenants_that_hold_as_much_the_one_with_the_oldest_loses_it() -> None:
    clock = [0.0]
    store = store_at(clock, room=4)
    for tenant, session_id in (("c", "1"), ("a", "1"), ("b", "1"), ("b", "2"), ("a", "2")):
        clock[0] += 1
        store.open(tenant, session_id)
    assert names_of(store) == [("c", "1"), ("b", "1"), ("b", "2"), ("a", "2")]
    clock[0] += 1
    store.open("a", "3")
    assert names_of(store) == [("c", "1"), ("b", "2"), ("a", "2"), ("a", "3")]


@pytest.mark.parametrize("seed", range(5))
def test_random_use_never_costs_a_tenant_a_session_while_another_holds_more(seed: int) -> None:
    random = Random(seed)
    store = roomy_store([0.0], per_tenant=10 * 2**17, in_all=20 * 2**17)
    num_gone = 0
    for _ in range(800):
        name = random.choices("abcd", (20, 5, 2, 1))[0], str(random.randrange(12))
        before = {(each.tenant, each.session_id): each.num_bytes + ENTRY_BYTES for each in store.list()}
        if random.random() < 0.1:
            store.delete(*name)
            before.pop(name, None)
        else:
            grow(store, store.open(*name), random.choice((10, 300, 3000)))
        store.check_integrity()
        gone = set(before) - set(names_of(store))
        held = {tenant: sum(size for key, size in before.items() if key[0] == tenant) for tenant, _ in before}
        others = {tenant: size for tenant, size in held.items() if tenant != name[0]}
        for tenant, session_id in gone:
            largest = max(before.values())
            assert tenant == name[0] or held[tenant] > max(others.values()) - largest * len(gone), (session_id, held)
        num_gone += len(gone)
    assert num_gone > 50, "there was always room"


def test_idle_sessions_are_forgotten() -> None:
    times = [0.0]
    store = store_at(times)
    old, foreign = store.open("a", "old"), store.open("b", "old")
    times[0] = 60.0
    store.open("a", "young")
    times[0] = 110.0
    store.open("a", "young")
    assert names_of(store) == [("a", "young")]
    assert store.open("a", "old") is not old
    assert store.open("b", "old") is not foreign


def test_bytes_are_those_of_the_stores_and_of_their_keeping() -> None:
    store = roomy_store([0.0])
    session = store.open("a", "1")
    assert session.num_bytes == 0, "a store exists from its first use on"
    assert session.ngrams.num_bytes + session.replies.num_bytes == session.num_bytes > 0
    store.note_use([session])
    assert store.num_bytes == session.num_bytes + ENTRY_BYTES
    store.delete("a", "1")
    store.note_use([session])
    assert store.num_bytes == 0, "one that was forgotten comes back by its use"


def test_a_tenant_is_shown_its_own_sessions_and_their_sizes() -> None:
    times = [0.0]
    store = roomy_store(times)
    session = store.open("alice", "chat")
    assert session.ngrams.num_bytes > 0
    times[0] = 2.0
    both = store.open("bob", "chat")
    assert both.ngrams.num_bytes + both.replies.num_bytes == both.num_bytes
    times[0] = 5.0
    (shown,) = store.list("alice")
    assert (shown.tenant, shown.session_id, shown.idle_seconds) == ("alice", "chat", 5.0)
    assert shown.num_bytes == session.num_bytes == sum(shown.store_bytes.values())
    assert set(shown.store_bytes) == {"ngrams"}
    everybodys = store.list()
    assert [each.tenant for each in everybodys] == ["alice", "bob"]
    assert set(everybodys[1].store_bytes) == {"ngrams", "replies"}
    assert everybodys[1].num_bytes == sum(everybodys[1].store_bytes.values())


def test_a_deleted_session_is_gone_for_its_tenant_alone() -> None:
    store = roomy_store([0.0])
    old, other = store.open("alice", "chat"), store.open("bob", "chat")
    assert store.delete("alice", "chat")
    assert not store.delete("alice", "chat")
    assert store.open("alice", "chat") is not old
    assert store.open("bob", "chat") is other


def taught_session(store: SessionStore, tenant: str, session_id: str, seed: int, num_rows: int) -> Session:
    """With something in every store."""
    draw, session = np.random.default_rng(seed), store.open(tenant, session_id)
    weights = np.sort(draw.random((num_rows, 10), np.float32), axis=1)[:, ::-1] / 20
    contexts = draw.integers(0, 50, (num_rows, 4), np.int32)
    ids = draw.random((num_rows, 50)).argsort(axis=1)[:, :10].astype(np.int32)  # each once in a row
    session.ngrams.harvest(contexts, ids, weights)
    session.replies.extend(draw.integers(0, 50, 3 * num_rows, np.int32), -1)
    own, _ = session.acceptance_models(seed % 2 == 0)
    own.chances[:] = draw.random(len(own.chances), np.float32)
    own.asked_rate[:] = 0.25, 9
    store.note_use([session])
    return session


@pytest.mark.parametrize("num_rows", [1, 40, 500, 30_000])
def test_a_session_goes_on_in_another_process_as_it_was(num_rows: int) -> None:
    store, other = roomy_store([0.0]), roomy_store([0.0])
    session = taught_session(store, "alice", "chat", 1, num_rows)
    assert store.take_changed() is session
    state = session.state()
    other.restore(state, VOCABULARY)
    restored = other.open("alice", "chat")
    assert restored.state() == state
    assert restored.store_bytes == session.store_bytes
    for numbers, others in zip(session.acceptance_models(False)[0], restored.acceptance_models(False)[0], strict=True):
        assert np.array_equal(numbers, others)
    restored.ngrams.check_integrity()
    other.check_integrity()
    context = np.arange(4, dtype=np.int32)
    for each in (session, restored):
        each.ngrams.harvest(context[None], np.arange(10, dtype=np.int32)[None], np.full((1, 10), 0.05, np.float32))
        each.replies.extend(context, -1)
    assert restored.state() == session.state()


def test_a_session_that_is_here_already_is_not_overwritten() -> None:
    store = roomy_store([0.0])
    taught_session(store, "alice", "chat", 1, 40)
    old = store.copy("alice", "chat")
    assert old is not None
    taught_session(store, "alice", "chat", 2, 40)
    new = store.copy("alice", "chat")
    store.restore(old, VOCABULARY)
    assert store.copy("alice", "chat") == new != old
    assert store.copy("bob", "chat") is None


def test_numbers_that_are_not_a_sessions_are_refused_and_leave_nothing() -> None:
    store, other = roomy_store([0.0]), roomy_store([0.0])
    session = taught_session(store, "alice", "chat", 1, 40)
    own, _ = session.acceptance_models(False)

    def spoiled(array: Any, value: float) -> SessionState:
        place = (0,) * array.ndim
        before, array[place] = array[place], value
        state = session.state()
        array[place] = before
        return state

    ngrams, replies = session.ngrams.arrays, session.replies.arrays
    whole = session.state()
    states = [
        spoiled(ngrams.ids, VOCABULARY),
        spoiled(ngrams.probabilities, np.nan),
        spoiled(ngrams.seen, -1),
        spoiled(replies.tokens, -1),
        spoiled(replies.counters, 10**12),
        spoiled(own.stretch, np.inf),
        spoiled(own.tried, -1),
        spoiled(own.asked_rate, 99),
        SessionState("alice", "chat", whole.stores | {"ngrams": whole.stores["ngrams"][:-1]}),
        SessionState("alice", "chat", whole.stores | {"replies": [each[:-3] for each in whole.stores["replies"]]}),
    ]
    for state in states:
        with pytest.raises(ValueError, match=r".+"):
            other.restore(state, VOCABULARY)
        assert other.copy("alice", "chat") is None
    other.restore(whole, VOCABULARY)
    assert other.copy("alice", "chat") == whole


def test_every_session_that_was_used_is_handed_over_once_and_what_is_forgotten_is_told_once() -> None:
    store = store_at([0.0])
    sessions = [store.open("a", name) for name in "123"]
    taken = [store.take_changed() for _ in range(4)]
    assert taken == [*sessions, None]
    store.note_use(sessions[1:2])
    store.open("a", "4")
    assert store.take_forgotten() == [("a", "1")]
    assert store.take_forgotten() == []
    state = store.copy("a", "4")
    assert state is not None
    store.restore(state, 10)
    store.delete("a", "4")
    store.restore(state, 10)
    assert store.take_forgotten() == [], "what came back was told to be forgotten"
    store.open("a", "4")
    taken = [store.take_changed() for _ in range(3)]
    assert [session and session.id for session in taken] == ["2", "4", None]
