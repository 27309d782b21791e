"""Authentication: where the server has API keys, every path but /health, /ready, /is_sleeping and the page needs one.

A plain ASGI middleware, which decides before the body is read.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import ApiError, OnError
from server.http.keys import Caller, KeyRing

OPEN_PATHS = frozenset({"/health", "/ready", "/is_sleeping", "/", "/favicon.ico"})
PAGE_FILES = "/web/"
METRICS_PATH = "/metrics"


class AuthMiddleware:
    """Answers 401 to a request without a valid key, and 403 where an admin's is needed. `caller_of` returns the caller
    that it found. has_open_metrics: /metrics needs no key."""

    def __init__(self, app: ASGIApp, ring: KeyRing, has_open_metrics: bool, on_error: OnError) -> None:
        self._app = app
        self._ring = ring
        self._open_paths = OPEN_PATHS | ({METRICS_PATH} if has_open_metrics else set())
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            caller = self._admit(scope)
        except ApiError as error:
            self._on_error(error)
            await error.response(scope)(scope, receive, send)
            return
        scope.setdefault("state", {})["caller"] = caller
        await self._app(scope, receive, send)

    def _admit(self, scope: Scope) -> Caller:
        if self._ring.is_open:
            return Caller()
        path = scope["path"]
        caller = self._ring.find(_key_in(Headers(scope=scope)))
        if path in self._open_paths or path.startswith(PAGE_FILES):
            return caller or Caller(is_admin=False)
        if caller is None:
            message = "A valid API key is needed: send it as Authorization: Bearer KEY."
            raise ApiError(401, message, None, "invalid_api_key")
        if path == METRICS_PATH and not caller.is_admin:
            raise ApiError(403, "Metrics are for admin keys.", None, "admin_key_required")
        return caller


def _key_in(headers: Headers) -> str:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def caller_of(connection: HTTPConnection) -> Caller:
    caller = connection.state.caller
    assert isinstance(caller, Caller)
    return caller
