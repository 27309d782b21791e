"""A session as callers see it, and as another process takes it over. Pure data; `session` fills it in."""

from __future__ import annotations

import msgspec


class SessionInfo(msgspec.Struct, kw_only=True, frozen=True):
    """The memory that one session's stores hold, in bytes; idle_seconds: since its last request arrived."""

    tenant: str
    session_id: str
    num_bytes: int
    idle_seconds: float
    store_bytes: dict[str, int]


class SessionState(msgspec.Struct, frozen=True):
    """All data of a session: token ids, counts and hashes. stores: by name, the raw bytes of the store's arrays, in the
    store's own order."""

    tenant: str
    session_id: str
    stores: dict[str, list[bytes]]

    def with_arrays(self, more: dict[str, list[bytes]]) -> SessionState:
        """The same session with these arrays behind those of each store."""
        stores = {name: [*self.stores.get(name, []), *more.get(name, [])] for name in {**self.stores, **more}}
        return SessionState(self.tenant, self.session_id, stores)

    @property
    def num_bytes(self) -> int:
        return sum(len(array) for store in self.stores.values() for array in store)
