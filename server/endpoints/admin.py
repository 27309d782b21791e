"""POST /admin/reload: the settings are read again. For admin keys."""

from __future__ import annotations

from fastapi import APIRouter, Request

from decoding.errors import ConfigError
from server.endpoints.openapi import error_replies
from server.http.auth import caller_of
from server.http.errors import ApiError, invalid
from server.schemas.catalog import ReloadReply
from server.service import service_of

router = APIRouter(prefix="/admin")


@router.post("/reload", responses=error_replies(400, 403))
async def reload(request: Request) -> ReloadReply:
    """Read gander.toml and the file of API keys again. Settings that a running server can change hold from now on; the
    others are named, and need a restart. Where anything is wrong nothing changes. For admin keys."""
    if not caller_of(request).is_admin:
        raise ApiError(403, "Settings are read again for admin keys.", None, "admin_key_required")
    try:
        found = service_of(request).reload()
    except ConfigError as error:
        raise invalid(f"The settings of before still hold. {error}", None, "invalid_config") from None
    return {"changed": list(found.changed), "needs_restart": list(found.needs_restart)}
