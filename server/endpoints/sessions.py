"""/v1/sessions: what drafting remembers of whom. A key sees and deletes its own; an admin key everybody's."""

from __future__ import annotations

from fastapi import APIRouter, Request

from decoding.core.session_info import SessionInfo
from server.endpoints.openapi import error_replies
from server.http.auth import caller_of
from server.http.errors import ApiError
from server.schemas.catalog import SessionCard, SessionDeletion, SessionList
from server.service import service_of

router = APIRouter(prefix="/v1/sessions")


@router.get("", responses=error_replies(503))
async def list_sessions(request: Request) -> SessionList:
    """The sessions whose drafting stores are kept, with their sizes."""
    service = service_of(request)
    service.require_ready()
    caller = caller_of(request)
    infos = await service.client.desk.sessions(None if caller.is_admin else caller.tenant)
    return SessionList(object="list", data=[_card(info) for info in infos])


@router.delete("/{session_id:path}", responses=error_replies(400, 403, 404, 503))
async def delete_session(session_id: str, request: Request, owner: str | None = None) -> SessionDeletion:
    """Forget a session. owner: whose, as the list says it; the caller's own if absent."""
    service = service_of(request)
    service.require_ready()
    caller = caller_of(request)
    tenant = caller.tenant if owner is None else owner
    if tenant != caller.tenant and not caller.is_admin:
        raise ApiError(403, "Sessions of others are for admin keys.", "owner", "admin_key_required")
    if not await service.client.desk.delete(tenant, session_id):
        raise ApiError(404, f"There is no session '{session_id}'.", "session_id", "session_not_found")
    return SessionDeletion(id=session_id, object="session.deleted", deleted=True)


def _card(info: SessionInfo) -> SessionCard:
    return SessionCard(
        id=info.session_id,
        object="session",
        owner=info.tenant,
        bytes=info.num_bytes,
        bytes_by_store=info.store_bytes,
        idle_seconds=info.idle_seconds,
    )
