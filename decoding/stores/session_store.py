"""All sessions of the worker, and which of them goes when they take too much room.

Keyed by (tenant, session id): nothing crosses tenants, so a fast reply for one tells another nothing.
Knows nothing of requests. Invariant: no tenant holds more than its bytes, nor all together more than theirs, in
sessions that are found again; each tenant's are in the order of their last use.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from decoding.core.session_info import SessionInfo, SessionState
from decoding.stores.acceptance_model import measured_models
from decoding.stores.session import NUM_STORES, Session

ENTRY_BYTES = 24576  # that a session counts beside its stores: its acceptance models and names


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Bytes of each store of one session, of all that one tenant's sessions hold, and of all sessions; seconds that an
    idle one is kept. A store never gets more than one session of the tenant may hold."""

    per_store: int
    per_tenant: int
    in_all: int
    time_to_live: float = float("inf")

    @property
    def store_bytes(self) -> int:
        most = min(self.per_tenant, self.in_all) - ENTRY_BYTES
        return max(0, min(self.per_store, most // NUM_STORES))


@dataclass(slots=True)
class _Tenant:
    """sessions: least recently used first, each with the bytes that it was last found to hold."""

    sessions: OrderedDict[str, Session] = field(default_factory=OrderedDict)
    held: dict[str, int] = field(default_factory=dict)
    num_bytes: int = 0

    @property
    def oldest(self) -> float:
        return next(iter(self.sessions.values())).last_used

    def note(self, session: Session, now: float) -> int:
        """It is in use; by how many bytes it grew."""
        session.last_used = now
        self.sessions[session.id] = session
        self.sessions.move_to_end(session.id)
        growth = ENTRY_BYTES + session.num_bytes - self.held.get(session.id, 0)
        self.held[session.id] = self.held.get(session.id, 0) + growth
        self.num_bytes += growth
        return growth

    def drop(self, session_id: str) -> int:
        """Forget a session; the bytes that it held."""
        del self.sessions[session_id]
        num_bytes = self.held.pop(session_id)
        self.num_bytes -= num_bytes
        return num_bytes


class SessionStore:
    """Where there is too much, a tenant that holds more than its own bytes loses its least recently used session, and
    beyond the bytes of all the one that holds most does; among those that hold as much the one whose oldest is older.
    So a tenant never loses a session to one that holds more.
    """

    def __init__(self, limits: SessionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self.acceptance_models = measured_models()  # of greedy and of sampled requests
        self._tenants: dict[str, _Tenant] = {}
        self._num_bytes = 0
        self._changed: dict[tuple[str, str], None] = {}  # since their state was last taken, the first that was first
        self._taken: set[tuple[str, str]] = set()  # whose state is elsewhere as well
        self._forgotten: list[tuple[str, str]] = []  # of those that were

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Sessions opened meanwhile are nobody's, and are gone afterwards with all that was learned from them."""
        kept = self.acceptance_models, self._tenants, self._num_bytes, self._changed
        self.acceptance_models, self._tenants, self._num_bytes, self._changed = measured_models(), {}, 0, {}
        try:
            yield
        finally:
            self.acceptance_models, self._tenants, self._num_bytes, self._changed = kept

    def __len__(self) -> int:
        return sum(len(tenant.sessions) for tenant in self._tenants.values())

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def open(self, tenant: str, session_id: str) -> Session:
        """The session, made if need be, now the most recently used one."""
        self._forget_idle()
        held = self._tenants.setdefault(tenant, _Tenant())
        session = held.sessions.get(session_id)
        if session is None:
            session = Session(tenant, session_id, self._limits.store_bytes, self.acceptance_models)
        self._note(held, session)
        return session

    def note_use(self, sessions: Iterable[Session]) -> None:
        """Requests run on these, which may have grown. One that was forgotten meanwhile stays so."""
        for session in sessions:
            if self.holds(session):
                self._note(self._tenants[session.tenant], session)

    def list(self, tenant: str | None = None) -> list[SessionInfo]:
        """The sessions of a tenant, or of all (None), least recently used first."""
        self._forget_idle()
        now = self._clock()
        return [
            SessionInfo(
                tenant=session.tenant,
                session_id=session.id,
                num_bytes=session.num_bytes,
                idle_seconds=now - session.last_used,
                store_bytes=session.store_bytes,
            )
            for session in sorted(self._sessions(), key=lambda each: each.last_used)
            if tenant is None or session.tenant == tenant
        ]

    def holds(self, session: Session) -> bool:
        """Whether it is still the session of its name."""
        return self._tenants.get(session.tenant, _Tenant()).sessions.get(session.id) is session

    def take_changed(self) -> Session | None:
        """A session that was used since it was last taken, of all the one that was so first. Its state is to be kept
        elsewhere as well."""
        for name, session_id in self._changed:
            del self._changed[name, session_id]
            self._taken.add((name, session_id))
            return self._tenants[name].sessions[session_id]
        return None

    def take_forgotten(self) -> Sequence[tuple[str, str]]:
        """Tenants and names of sessions whose state was taken and that are no longer here, each told of once."""
        forgotten, self._forgotten = self._forgotten, []
        return forgotten

    def copy(self, tenant: str, session_id: str) -> SessionState | None:
        """The state of a session, None for one that is not here."""
        session = self._tenants.get(tenant, _Tenant()).sessions.get(session_id)
        return None if session is None else session.state()

    def restore(self, state: SessionState, vocab_size: int, replaces: bool = False) -> None:
        """Go on with a session of another process. One that is here already stays as it is, or is replaced. Raises
        ValueError for what cannot have been one, and has changed nothing then."""
        key = state.tenant, state.session_id
        is_here = key[1] in self._tenants.get(key[0], _Tenant()).sessions
        if is_here and not replaces:
            return
        session = Session(*key, self._limits.store_bytes, self.acceptance_models)
        session.restore(state, vocab_size)
        if is_here:
            self._taken.discard(key)  # so that nobody is told that it is forgotten
            self._drop(*key)
        self._note(self._tenants.setdefault(key[0], _Tenant()), session)
        self._taken.add(key)
        self._forgotten = [each for each in self._forgotten if each != key]
        self._changed.pop(key, None)

    def delete(self, tenant: str, session_id: str) -> bool:
        """Forget a session; whether it was there. Requests that run on it keep its stores until they end."""
        if session_id not in self._tenants.get(tenant, _Tenant()).sessions:
            return False
        self._drop(tenant, session_id)
        return True

    def check_integrity(self) -> None:
        """Raise AssertionError unless the counts are those of the sessions, and within the limits."""
        for name, tenant in self._tenants.items():
            assert tenant.sessions, name
            assert set(tenant.sessions) == set(tenant.held), name
            num_held = sum(tenant.held.values())
            assert tenant.num_bytes == num_held <= self._limits.per_tenant, (name, tenant.num_bytes)
        total = sum(tenant.num_bytes for tenant in self._tenants.values())
        assert total == self._num_bytes <= self._limits.in_all, (total, self._num_bytes)

    def _sessions(self) -> Iterator[Session]:
        for tenant in self._tenants.values():
            yield from tenant.sessions.values()

    def _note(self, tenant: _Tenant, session: Session) -> None:
        self._num_bytes += tenant.note(session, self._clock())
        self._changed[session.tenant, session.id] = None
        while tenant.num_bytes > self._limits.per_tenant:
            self._drop_oldest(session.tenant)
        while self._num_bytes > self._limits.in_all:
            self._drop_oldest(max(self._tenants, key=lambda name: self._excess(self._tenants[name])))

    @staticmethod
    def _excess(tenant: _Tenant) -> tuple[int, float]:
        return tenant.num_bytes, -tenant.oldest

    def _drop_oldest(self, name: str) -> None:
        self._drop(name, next(iter(self._tenants[name].sessions)))

    def _drop(self, name: str, session_id: str) -> None:
        self._num_bytes -= self._tenants[name].drop(session_id)
        self._changed.pop((name, session_id), None)
        if (name, session_id) in self._taken:
            self._taken.remove((name, session_id))
            self._forgotten.append((name, session_id))
        if not self._tenants[name].sessions:
            del self._tenants[name]

    def _forget_idle(self) -> None:
        past = self._clock() - self._limits.time_to_live
        for name in [name for name, tenant in self._tenants.items() if tenant.oldest < past]:
            while name in self._tenants and self._tenants[name].oldest < past:
                self._drop_oldest(name)
