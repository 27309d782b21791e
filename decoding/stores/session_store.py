"""All sessions of the worker, and which of them goes when there are too many.

Keyed by (tenant, session id): nothing crosses tenants, so a fast reply for one tells another nothing.
Knows nothing of requests. Invariant: at most `max_sessions`, in the order of their last use.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from decoding.core.session_info import SessionInfo
from decoding.stores.judge import measured_judges
from decoding.stores.session import Session


class SessionStore:
    """All sessions of the worker. max_bytes: of each store of a session; time_to_live: idle seconds.

    Beyond max_sessions the tenant that holds most loses its least recently used session, and among tenants that hold
    as many the one whose oldest is older. So a tenant never loses a session to one that holds more.
    """

    def __init__(
        self,
        max_sessions: int,
        max_bytes: int,
        time_to_live: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._time_to_live = time_to_live
        self._clock = clock
        self.judges = measured_judges()  # of greedy and of sampled requests
        self._sessions: OrderedDict[tuple[str, str], Session] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def num_bytes(self) -> int:
        return sum(session.num_bytes for session in self._sessions.values())

    def open(self, tenant: str, session_id: str) -> Session:
        """The session, made if need be, now the most recently used one."""
        now = self._clock()
        self._forget_idle(now)
        key = (tenant, session_id)
        session = self._sessions.pop(key, None)
        if session is None:
            session = Session(tenant, session_id, self._max_bytes, self.judges)
        session.last_used = now
        self._sessions[key] = session
        if len(self._sessions) > self._max_sessions:
            del self._sessions[self._next_to_go()]
        return session

    def list(self, tenant: str | None = None) -> list[SessionInfo]:
        """The sessions of a tenant, or of all (None), least recently used first."""
        now = self._clock()
        self._forget_idle(now)
        return [
            SessionInfo(
                tenant=session.tenant,
                session_id=session.id,
                num_bytes=session.num_bytes,
                idle_seconds=now - session.last_used,
                store_bytes=session.store_bytes,
            )
            for session in self._sessions.values()
            if tenant is None or session.tenant == tenant
        ]

    def delete(self, tenant: str, session_id: str) -> bool:
        """Forget a session; whether it was there. Requests that run on it keep its stores until they end."""
        return self._sessions.pop((tenant, session_id), None) is not None

    def _next_to_go(self) -> tuple[str, str]:
        num_sessions = Counter(tenant for tenant, _ in self._sessions)
        most = max(num_sessions.values())
        return next(key for key in self._sessions if num_sessions[key[0]] == most)

    def _forget_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used <= self._time_to_live:
                return
            self._sessions.popitem(last=False)
