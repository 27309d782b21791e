"""/v1/sessions: what drafting has learned in each session. A key sees and deletes its own, an admin's everybody's."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from decoding.core.session_info import SessionInfo
from server.endpoints.openapi import error_replies
from server.http.auth import caller_of
from server.http.errors import ApiError, invalid
from server.http.holds import hold
from server.http.keys import VALID_TENANT
from server.http.sender import check_session_id
from server.models.loader import not_ready
from server.models.model import Model
from server.schemas.catalog import SessionCard, SessionDeletion, SessionList
from server.service import service_of

BYTES = "application/octet-stream"
CONTENT = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
EXPORTED = error_replies(400, 403, 404, 503) | {200: {"content": CONTENT}}

router = APIRouter(prefix="/v1/sessions")


@router.get("", responses=error_replies(404, 503))
async def list_sessions(request: Request, model: str | None = None) -> SessionList:
    """The sessions whose drafting stores are kept, with the bytes of each store. model: whose; those of all that are
    loaded if absent."""
    models, caller = _loaded(request, model), caller_of(request)
    cards = []
    for each in models:
        infos = await each.client.sessions.infos(None if caller.is_admin else caller.tenant)
        cards += [_card(info, each) for info in infos]
    return SessionList(object="list", data=cards)


@router.delete("/{session_id:path}", responses=error_replies(400, 403, 404, 503))
async def delete_session(
    session_id: str, request: Request, owner: str | None = None, model: str | None = None
) -> SessionDeletion:
    """Delete a session. owner: whose session, as the list names it; the caller's own if absent. model: of which model;
    of all that are loaded if absent."""
    models, caller = _loaded(request, model), caller_of(request)
    tenant = caller.tenant if owner is None else owner
    if tenant != caller.tenant and not caller.is_admin:
        raise ApiError(403, "Sessions of others are for admin keys.", "owner", "admin_key_required")
    _check_names(session_id, tenant)
    were_there = [await each.client.sessions.delete(tenant, session_id) for each in models]
    if not any(were_there):
        raise _not_found(session_id)
    return SessionDeletion(id=session_id, object="session.deleted", deleted=True)


@router.get(
    "/{session_id:path}/export",
    response_class=Response,
    responses=EXPORTED,
)
async def export_session(
    session_id: str, request: Request, owner: str | None = None, model: str | None = None
) -> Response:
    """Export all that a session has learned, for another server of the same model. For admin keys. model: of which
    model; the default one if absent."""
    served, tenant = await _of_admin(request, session_id, owner, model)
    data = await served.client.sessions.export(tenant, session_id)
    if data is None:
        raise _not_found(session_id)
    return Response(data, media_type=BYTES)


@router.put(
    "/{session_id:path}/export",
    status_code=204,
    response_class=Response,
    responses=error_replies(400, 403, 404, 413, 415, 503),  # 404: a line end in the name, which no path has
    openapi_extra={"requestBody": {"required": True, "content": CONTENT}},
)
async def import_session(session_id: str, request: Request, owner: str | None = None, model: str | None = None) -> None:
    """Import a session that another server exported; it replaces the one that is here. For admin keys. model: into
    which model; the default one if absent."""
    served, tenant = await _of_admin(request, session_id, owner, model)
    try:
        await served.client.sessions.take_over(tenant, session_id, await request.body())
    except ValueError as error:
        raise invalid(f"The body cannot be gone on with: {error}.", None, "invalid_session") from None


def _loaded(request: Request, name: str | None) -> list[Model]:
    """The model of this name, or all that are loaded, which stay so while the request runs. Raises ApiError 503 where
    one does not answer now, 404 for another name."""
    service = service_of(request)
    models = [model for model in service.models if model.is_loaded] if name is None else [service.models.find(name)]
    for model in models:
        if model.status.state != "ready":
            raise not_ready(model.status)
        hold(request, service.loader.use(model))
    return models


async def _of_admin(request: Request, session_id: str, owner: str | None, name: str | None) -> tuple[Model, str]:
    """The model, loaded, and the session's owner. Raises ApiError 503 where it cannot be, 404 for another name, 403 for
    a key that is not an admin's, 400 for names that no session has."""
    service, caller = service_of(request), caller_of(request)
    model = service.hold_model(request, name)
    await service.loaded(model)
    if not caller.is_admin:
        raise ApiError(403, "Sessions are moved with admin keys.", None, "admin_key_required")
    tenant = caller.tenant if owner is None else owner
    _check_names(session_id, tenant)
    return model, tenant


def _check_names(session_id: str, tenant: str) -> None:
    """Raise ApiError for names that no request can give a session."""
    check_session_id(session_id, "session_id")
    if not VALID_TENANT.fullmatch(tenant):
        raise invalid("An owner is as the list of sessions names it.", "owner")


def _not_found(session_id: str) -> ApiError:
    return ApiError(404, f"There is no session '{session_id}'.", "session_id", "session_not_found")


def _card(info: SessionInfo, model: Model) -> SessionCard:
    return SessionCard(
        id=info.session_id,
        model=model.name,
        object="session",
        owner=info.tenant,
        bytes=info.num_bytes,
        bytes_by_store=info.store_bytes,
        idle_seconds=info.idle_seconds,
    )
