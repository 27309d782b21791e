"""Sessions keep to their tenant, their number and their time, and one tenant cannot drive out another's."""

from collections import Counter
from random import Random

import pytest

from decoding.stores.session_store import SessionStore


def store_at(times: list[float], max_sessions: int = 3, time_to_live: float = 100.0) -> SessionStore:
    return SessionStore(max_sessions, 2**20, time_to_live, clock=lambda: times[0])


def names_of(store: SessionStore) -> list[tuple[str, str]]:
    return [(session.tenant, session.session_id) for session in store.list()]


def test_the_same_name_of_another_tenant_is_another_session() -> None:
    store = store_at([0.0])
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


def test_a_tenant_that_opens_many_drives_out_its_own() -> None:
    store = store_at([0.0], max_sessions=10)
    only = store.open("alice", "chat")
    for number in range(100):
        store.open("bob", str(number))
    assert [session.session_id for session in store.list("alice")] == ["chat"]
    assert store.open("alice", "chat") is only
    assert [session.session_id for session in store.list("bob")] == [str(number) for number in range(91, 100)]


def test_of_tenants_that_hold_as_many_the_one_with_the_oldest_loses_it() -> None:
    store = store_at([0.0], max_sessions=4)
    for tenant, session_id in (("c", "1"), ("a", "1"), ("b", "1"), ("b", "2"), ("a", "2")):
        store.open(tenant, session_id)
    assert names_of(store) == [("c", "1"), ("b", "1"), ("b", "2"), ("a", "2")]
    store.open("a", "3")
    assert names_of(store) == [("c", "1"), ("b", "2"), ("a", "2"), ("a", "3")]


@pytest.mark.parametrize("seed", range(5))
def test_random_use_never_costs_a_tenant_a_session_while_another_holds_more(seed: int) -> None:
    random = Random(seed)
    store = store_at([0.0], max_sessions=12)
    expected: list[tuple[str, str]] = []  # least recently used first
    num_gone = 0
    for _ in range(1500):
        name = random.choices("abcd", (20, 5, 2, 1))[0], str(random.randrange(12))
        if name in expected:
            expected.remove(name)
        if random.random() < 0.1:
            store.delete(*name)
        else:
            store.open(*name)
            expected.append(name)
        if len(expected) > 12:
            (gone,) = set(expected) - set(names_of(store))
            held = Counter(tenant for tenant, _ in expected)
            assert held[gone[0]] == max(held.values()), (gone, held)
            assert not any(held[each[0]] == held[gone[0]] for each in expected[: expected.index(gone)])
            assert gone != name
            expected.remove(gone)
            num_gone += 1
        assert names_of(store) == expected
    assert num_gone > 100, "there was always room"


def test_idle_sessions_are_forgotten() -> None:
    times = [0.0]
    store = store_at(times)
    old = store.open("a", "old")
    times[0] = 60.0
    store.open("a", "young")
    times[0] = 110.0
    store.open("a", "young")
    assert len(store) == 1
    assert store.open("a", "old") is not old


def test_bytes_are_those_of_the_stores() -> None:
    store = store_at([0.0])
    session = store.open("a", "1")
    assert store.num_bytes == session.num_bytes == 0, "a store exists from its first use on"
    assert session.ngrams.num_bytes + session.replies.num_bytes == session.num_bytes == store.num_bytes > 0


def test_a_tenant_is_shown_its_own_sessions_and_their_sizes() -> None:
    times = [0.0]
    store = store_at(times)
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
    store = store_at([0.0])
    old, other = store.open("alice", "chat"), store.open("bob", "chat")
    assert store.delete("alice", "chat")
    assert not store.delete("alice", "chat")
    assert store.open("alice", "chat") is not old
    assert store.open("bob", "chat") is other
