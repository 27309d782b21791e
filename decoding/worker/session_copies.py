"""Copies of sessions on their way to the server, in parts, so that no round of the worker's loop is a long one.

Owns the copy that is under way. Knows nothing of sockets. Invariant: a copy is of one moment, its parts go out in order
with none of another copy's between them, and nothing goes out of a session that was replaced or forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator

from decoding.core.session_info import SessionState
from decoding.stores.session import Session
from decoding.stores.session_store import SessionStore
from decoding.worker.messages import SessionForgotten, SessionKept, SessionNews

PART_BYTES = 2**20  # of arrays, beyond which a part has one


class SessionCopies:
    def __init__(self, sessions: SessionStore) -> None:
        self._sessions = sessions
        self._session: Session | None = None
        self._parts: Iterator[SessionKept] = iter(())

    def take(self) -> list[SessionNews]:
        """The next part of a copy, of a session that was used, after what was forgotten."""
        news: list[SessionNews] = [
            SessionForgotten(tenant=tenant, session_id=session_id)
            for tenant, session_id in self._sessions.take_forgotten()
        ]
        part = next(self._parts, None) if self._session is not None and self._sessions.holds(self._session) else None
        if part is None and (session := self._sessions.take_changed()) is not None:
            self._session, self._parts = session, parts(session.state())
            part = next(self._parts)
        if part is None or part.is_last:
            self._session, self._parts = None, iter(())
        return news if part is None else [*news, part]


def parts(state: SessionState) -> Iterator[SessionKept]:
    """A session's copy as messages, at least one. Arrays stay whole and in their order."""
    part, is_first = SessionState(state.tenant, state.session_id, {}), True
    for name, store in state.stores.items():
        for array in store:
            if part.stores and part.num_bytes + len(array) > PART_BYTES:
                yield SessionKept(state=part, is_first=is_first, is_last=False)
                part, is_first = SessionState(state.tenant, state.session_id, {}), False
            part.stores.setdefault(name, []).append(array)
    yield SessionKept(state=part, is_first=is_first)
