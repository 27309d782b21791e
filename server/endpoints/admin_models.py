"""POST /admin/models/{name}/load and /unload: what requests and their absence else bring about. For admin keys.

Both answer at once with the model's state; `/health` tells of what becomes of it.
"""

from __future__ import annotations

from fastapi import APIRouter, Request

from server.endpoints.health import state_of
from server.endpoints.openapi import error_replies
from server.http.auth import caller_of
from server.http.errors import ApiError
from server.models.model import Model
from server.schemas.catalog import ModelState
from server.service import Service, service_of

router = APIRouter(prefix="/admin/models")


@router.post("/{name:path}/load", status_code=202, responses=error_replies(403, 404))
async def load_model(name: str, request: Request) -> ModelState:
    """Load a model, unless it is loaded; others may make way for it."""
    service, model = _of_admin(name, request)
    service.loader.begin(model)
    return state_of(model)


@router.post("/{name:path}/unload", status_code=202, responses=error_replies(403, 404))
async def unload_model(name: str, request: Request) -> ModelState:
    """Unload a model as soon as no request uses it."""
    service, model = _of_admin(name, request)
    service.loader.unload(model)
    return state_of(model)


def _of_admin(name: str, request: Request) -> tuple[Service, Model]:
    if not caller_of(request).is_admin:
        raise ApiError(403, "Models are loaded and unloaded with admin keys.", None, "admin_key_required")
    service = service_of(request)
    return service, service.models.find(name)
