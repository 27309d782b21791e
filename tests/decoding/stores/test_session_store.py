"""Sessions keep to their tenant, their number and their time."""

from decoding.stores.session import SessionStore


def store_at(times: list[float], max_sessions: int = 3, time_to_live: float = 100.0) -> SessionStore:
    return SessionStore(max_sessions, 2**20, time_to_live, clock=lambda: times[0])


def test_the_same_name_of_another_tenant_is_another_session() -> None:
    store = store_at([0.0])
    first = store.open("alice", "chat")
    assert store.open("alice", "chat") is first
    assert store.open("bob", "chat") is not first
    assert store.open("bob", "chat").adjacency is not first.adjacency


def test_the_least_recently_used_session_goes_first() -> None:
    store = store_at([0.0])
    kept, gone = store.open("a", "1"), store.open("a", "2")
    store.open("a", "3")
    store.open("a", "1")
    store.open("a", "4")
    assert len(store) == 3
    assert store.open("a", "1") is kept
    assert store.open("a", "2") is not gone


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
    assert store.num_bytes == session.num_bytes == session.adjacency.num_bytes


def test_a_tenant_is_shown_its_own_sessions_and_their_sizes() -> None:
    times = [0.0]
    store = store_at(times)
    session = store.open("alice", "chat")
    times[0] = 2.0
    store.open("bob", "chat").ngrams  # noqa: B018 - a store exists from its first use on
    times[0] = 5.0
    (shown,) = store.list("alice")
    assert (shown.tenant, shown.session_id, shown.idle_seconds) == ("alice", "chat", 5.0)
    assert shown.num_bytes == session.num_bytes == sum(shown.store_bytes.values())
    assert set(shown.store_bytes) == {"adjacency"}
    everybodys = store.list()
    assert [each.tenant for each in everybodys] == ["alice", "bob"]
    assert set(everybodys[1].store_bytes) == {"adjacency", "ngrams"}
    assert everybodys[1].num_bytes == sum(everybodys[1].store_bytes.values())


def test_a_deleted_session_is_gone_for_its_tenant_alone() -> None:
    store = store_at([0.0])
    old, other = store.open("alice", "chat"), store.open("bob", "chat")
    assert store.delete("alice", "chat")
    assert not store.delete("alice", "chat")
    assert store.open("alice", "chat") is not old
    assert store.open("bob", "chat") is other
