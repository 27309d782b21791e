"""What a request holds until its answer is sent, or its client has left.

Plain ASGI middleware, which knows nothing of what is held.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send


class HoldsMiddleware:
    """Gives back what a request was made to `hold`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            scope.setdefault("state", {})["held"] = held
            await self._app(scope, receive, send)


def hold(connection: HTTPConnection, what: AbstractContextManager[object]) -> None:
    """Enter the context now, and leave it when the request's answer is sent."""
    held = connection.state.held
    assert isinstance(held, ExitStack)
    held.enter_context(what)
