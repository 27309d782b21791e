"""POST /api/pull and DELETE /api/delete: models of the hub are brought into its cache and removed. For admin keys.

Which models are served is said at the server's start. Invariant: a pull whose client leaves ends soon, and another one
goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from decoding.errors import ConfigError
from server.endpoints.openapi import error_replies
from server.http.auth import caller_of
from server.http.body import takes
from server.http.errors import ApiError, invalid
from server.http.sse import LINES, EventStream, line, until_disconnect
from server.library.hub import HubModel, HubUnreachable, NotOnHub, look_up
from server.library.installed import find_installed, remove
from server.library.pull import Progress, pull
from server.schemas.ollama.replies import OllamaError, PullStatus
from server.schemas.ollama.requests import DeleteRequest, PullRequest
from server.service import service_of

router = APIRouter(prefix="/api")

TOLD_EVERY = 0.2  # seconds between two lines of a pull

T = TypeVar("T")


class _Left(Exception):
    """The client of a pull has left."""


@router.post("/pull", include_in_schema=False)
async def pull_model(request: Request) -> Response:
    """Bring a model of the hub, org/model or org/model:Q4_K_M, into its cache, for the next start."""
    _require_admin(request)
    body = await service_of(request).read(request, PullRequest)
    model = await until_disconnect(request.receive, _refusing(lambda: look_up(body.model)))
    statuses = _statuses(model)
    if body.stream:
        return EventStream(_lines(statuses), LINES.media_type)
    last = await until_disconnect(request.receive, _last_of(statuses))
    if "error" in last:
        raise invalid(last["error"], "model", "pull_failed")
    return JSONResponse(last)


@router.delete(
    "/delete",
    responses=error_replies(400, 403, 404, 413, 415, model=OllamaError),
    openapi_extra=takes(DeleteRequest),
)
async def delete_model(request: Request) -> Response:
    """Remove a model from the hub's cache, unless it is served."""
    _require_admin(request)
    service = service_of(request)
    body = await service.read(request, DeleteRequest)
    found = await _refusing(lambda: find_installed(body.model))
    if found.name.repo == service.settings.model.partition(":")[0]:
        raise invalid(f"The model {body.model} is served, and cannot be removed.", "model", "model_in_use")
    await _refusing(lambda: remove(body.model))
    return Response()


def _require_admin(request: Request) -> None:
    if not caller_of(request).is_admin:
        raise ApiError(403, "Models are pulled and removed for admin keys.", None, "admin_key_required")


async def _refusing(work: Callable[[], T]) -> T:
    """Run `work` in a thread. Raises what it says of a model as ApiError."""
    try:
        return await asyncio.to_thread(work)
    except HubUnreachable as error:
        raise ApiError(503, f"{error}.", "model", "hub_unreachable") from None
    except NotOnHub as error:
        raise ApiError(404, f"{error}.", "model", "model_not_found") from None
    except ConfigError as error:
        raise invalid(f"{error}.", "model", "invalid_model") from None


async def _statuses(model: HubModel) -> AsyncGenerator[PullStatus]:
    """How far the pull is, now and then, and at last that it succeeded, or why it did not."""
    latest: Progress | None = None
    has_left = False

    def note(progress: Progress) -> None:
        nonlocal latest
        if has_left:
            raise _Left
        latest = progress

    yield {"status": "pulling manifest"}
    pulling = asyncio.ensure_future(asyncio.to_thread(pull, model, note))
    try:
        while not pulling.done():
            await asyncio.wait({pulling}, timeout=TOLD_EVERY)
            if latest is not None:
                yield {"status": f"pulling {latest.file}", "total": latest.total, "completed": latest.done}
        pulling.result()
        yield {"status": "success"}
    except ConfigError as error:
        yield {"error": f"{error}."}
    finally:
        has_left = True
        pulling.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else asks for it


async def _last_of(statuses: AsyncGenerator[PullStatus]) -> PullStatus:
    last: PullStatus = {}
    async with aclosing(statuses):
        async for status in statuses:
            last = status
    return last


async def _lines(statuses: AsyncGenerator[PullStatus]) -> AsyncGenerator[bytes]:
    async with aclosing(statuses):
        async for status in statuses:
            yield line(status)
