"""What drafting remembers between the requests of one caller, and how long.

Keyed by (tenant, session id): nothing crosses tenants, so a fast reply for one tells another nothing.
Knows nothing of requests. Each store has a byte limit; the least recently used session goes first.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from decoding.core.session_info import SessionInfo
from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.earnings import Ledger
from decoding.stores.ngram import NgramStore


@dataclass(slots=True)
class Session:
    """The stores of one session; running requests hold on to it even after it left the `SessionStore`.

    max_bytes: of each store. A store exists from its first use on. earnings: of greedy and of sampled requests.
    """

    tenant: str
    id: str
    max_bytes: int
    adjacency: AdjacencyTable
    last_used: float = 0.0
    earnings: tuple[Ledger, Ledger] = field(default_factory=lambda: (Ledger(), Ledger()))
    _ngrams: NgramStore | None = field(default=None, repr=False)

    @property
    def ngrams(self) -> NgramStore:
        if self._ngrams is None:
            self._ngrams = NgramStore(self.max_bytes)
        return self._ngrams

    def ledger(self, is_sampled: bool) -> Ledger:
        """What methods earned in requests of this kind."""
        return self.earnings[is_sampled]

    @property
    def store_bytes(self) -> dict[str, int]:
        """Bytes of each store in use, by its name."""
        used = {"adjacency": self.adjacency.num_bytes}
        return used | {"ngrams": self._ngrams.num_bytes} if self._ngrams else used

    @property
    def num_bytes(self) -> int:
        return sum(self.store_bytes.values())


class SessionStore:
    """All sessions of the worker. max_bytes: of each store of a session; time_to_live: idle seconds."""

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
            session = Session(tenant, session_id, self._max_bytes, AdjacencyTable(self._max_bytes))
        session.last_used = now
        self._sessions[key] = session
        if len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)
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

    def _forget_idle(self, now: float) -> None:
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if now - oldest.last_used <= self._time_to_live:
                return
            self._sessions.popitem(last=False)
