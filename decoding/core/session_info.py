"""What a caller is told of one session, and what another process takes over. Pure data; `session` fills it in."""

from __future__ import annotations

import msgspec


class SessionInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What drafting remembers of one session: bytes in all and by store, seconds since its last request came."""

    tenant: str
    session_id: str
    num_bytes: int
    idle_seconds: float
    store_bytes: dict[str, int]


class SessionState(msgspec.Struct, frozen=True):
    """All that a session holds: token ids, counts and hashes. stores: the arrays of each store in use, in its order, as
    they lie in memory."""

    tenant: str
    session_id: str
    stores: dict[str, list[bytes]]

    @property
    def num_bytes(self) -> int:
        return sum(len(array) for store in self.stores.values() for array in store)
