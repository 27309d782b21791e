"""The sessions of all workers, listed, deleted and moved as if there were one worker.

A session that several workers used has a part at each. Its home is the worker of its last call. Knows nothing of HTTP
or of what is in a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from decoding.core.session_info import SessionInfo
from server.engine_client.router import Router
from server.engine_client.worker import Worker


class AllSessions:
    """Its methods raise ApiError where a worker does not answer."""

    def __init__(self, workers: Sequence[Worker], router: Router) -> None:
        self._workers = workers
        self._router = router

    async def infos(self, tenant: str | None) -> list[SessionInfo]:
        """The sessions of one tenant, or of all where tenant is None, least recently used first."""
        lists = await asyncio.gather(
            *(worker.sessions.questions.infos(tenant) for worker in self._workers if worker.is_serving)
        )
        found: dict[tuple[str, str], SessionInfo] = {}
        for infos in lists:
            for info in infos:
                name = info.tenant, info.session_id
                found[name] = _together(found[name], info) if name in found else info
        return sorted(found.values(), key=lambda info: -info.idle_seconds)

    async def delete(self, tenant: str, session_id: str) -> bool:
        """Forget a session everywhere. Returns whether there was one."""
        found = await asyncio.gather(*(worker.sessions.delete(tenant, session_id) for worker in self._workers))
        return any(found)

    async def export(self, tenant: str, session_id: str) -> bytes | None:
        """A session as bytes for another server, or None if there is no such session."""
        for worker in self._from_home(tenant, session_id):
            data = await worker.sessions.export(tenant, session_id)
            if data is not None:
                return data
        return None

    async def take_over(self, tenant: str, session_id: str, data: bytes) -> None:
        """Replace a session by one that another server exported. Raises ValueError, with a clause, for bytes that are
        no session."""
        taker = self._from_home(tenant, session_id)[0]
        await taker.sessions.take_over(tenant, session_id, data)
        self._router.settle(tenant, session_id, taker.number)
        others = (worker for worker in self._workers if worker is not taker)
        await asyncio.gather(*(worker.sessions.forget(tenant, session_id) for worker in others))

    def _from_home(self, tenant: str, session_id: str) -> list[Worker]:
        """The workers that serve, the session's home first, then the idler ones."""
        home = self._router.home(tenant, session_id)
        return sorted(
            (worker for worker in self._workers if worker.is_serving),
            key=lambda worker: (worker.number != home, len(worker.requests)),
        )


def _together(one: SessionInfo, other: SessionInfo) -> SessionInfo:
    stores = [*one.store_bytes, *(name for name in other.store_bytes if name not in one.store_bytes)]
    return msgspec.structs.replace(
        one,
        num_bytes=one.num_bytes + other.num_bytes,
        idle_seconds=min(one.idle_seconds, other.idle_seconds),
        store_bytes={name: one.store_bytes.get(name, 0) + other.store_bytes.get(name, 0) for name in stores},
    )
