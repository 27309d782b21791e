"""What a caller is told of one session. Pure data; `session` fills it in."""

from __future__ import annotations

import msgspec


class SessionInfo(msgspec.Struct, kw_only=True, frozen=True):
    """What drafting remembers of one session: bytes in all and by store, seconds since its last request came."""

    tenant: str
    session_id: str
    num_bytes: int
    idle_seconds: float
    store_bytes: dict[str, int]
