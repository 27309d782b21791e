"""GET / and /web/...: the page and its files in `server/web`, served without a key.

Owns their headers: a strict content security policy, and caching that revalidates. Knows nothing of the engine.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[1] / "web"
SERVED_SUFFIXES = frozenset({".html", ".css", ".js", ".svg", ".md", ".txt"})
POLICY = (
    "default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # browsers keep files, but revalidate them by ETag, so that an upgrade shows at once
}
FILES = StaticFiles(directory=FOLDER)


async def _serve(path: str, request: Request) -> Response:
    if PurePosixPath(path).suffix not in SERVED_SUFFIXES:
        raise HTTPException(404)
    response = await FILES.get_response(path, request.scope)
    response.headers.update(HEADERS)
    return response


@router.get("/")
async def page(request: Request) -> Response:
    return await _serve("index.html", request)


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    """The icon, an SVG file, at the path where browsers look for one."""
    return await _serve("favicon.svg", request)


@router.get("/web/{path:path}")
async def file(path: str, request: Request) -> Response:
    return await _serve(path, request)
