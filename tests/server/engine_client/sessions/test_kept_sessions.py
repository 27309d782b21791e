"""What is kept of sessions for the next worker stays within its bytes."""

from decoding.core.session_info import SessionState
from server.engine_client.sessions.kept_sessions import KeptSessions


def state(session_id: str, num_bytes: int) -> SessionState:
    return SessionState("alice", session_id, {"ngrams": [bytes(num_bytes)]})


def names(kept: KeptSessions) -> list[str]:
    return [state.session_id for state in kept.states()]


def test_the_sessions_that_changed_last_are_kept_within_the_bytes() -> None:
    kept = KeptSessions(100)
    for name in "abc":
        kept.keep(state(name, 40))
    assert names(kept) == ["b", "c"]
    kept.keep(state("b", 50))
    assert names(kept) == ["c", "b"]
    kept.forget("alice", "c")
    kept.forget("alice", "nobody")
    kept.keep(state("d", 50))
    assert names(kept) == ["b", "d"]
    kept.keep(state("e", 101))
    assert names(kept) == []
    kept.keep(state("f", 100))
    assert names(kept) == ["f"]
    kept.clear()
    assert names(kept) == []
