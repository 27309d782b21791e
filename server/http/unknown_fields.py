"""What happens to unknown fields of a body: they are refused, or dropped with one line in the log for each name.

A context variable holds the choice while a request runs; the wire models read it where they meet such a field.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Literal

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import MAX_PARAM, shortened

LOG = logging.getLogger("gander.fields")
MAX_NAMES = 1000  # most names logged: clients choose them, so there may be any number

UnknownFields = Literal["refuse", "ignore"]


class IgnoredFields:
    """Logs the name of each dropped field once."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def note(self, name: str) -> None:
        name = shortened(name, MAX_PARAM)
        if name not in self._names and len(self._names) < MAX_NAMES:
            self._names.add(name)
            LOG.warning("The unknown field %r of a request is ignored, from now on without a word.", name)


IGNORED: ContextVar[IgnoredFields | None] = ContextVar("ignored_fields", default=None)  # None: refuse them


class UnknownFieldsMiddleware:
    """Makes the wire models drop unknown fields of every request instead of refusing them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ignored = IgnoredFields()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = IGNORED.set(self._ignored)
        try:
            await self._app(scope, receive, send)
        finally:
            IGNORED.reset(token)
