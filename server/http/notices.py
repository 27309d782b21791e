"""What a client is told beside the answer: a sentence for each thing in its request that was left out or cut.

The sentences stand in the header X-Gander-Notice of the reply, and each is in the log once. Context variables hold them
and the policy on unknown fields while a request runs; the wire models read it where they meet such a field.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Literal

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import MAX_MESSAGE, shortened

LOG = logging.getLogger("gander.notices")
NOTICE = "X-Gander-Notice"
MOST_LOGGED = 1000  # sentences: clients choose what they name, so there may be any number

UnknownFields = Literal["warn", "error", "ignore"]

UNKNOWN_FIELDS: ContextVar[UnknownFields] = ContextVar("unknown_fields", default="error")
_TOLD: ContextVar[list[str] | None] = ContextVar("told", default=None)  # of this request; None: nobody is told


def tell(sentence: str) -> None:
    """Tell the client whose request runs. A sentence is told once; what is not ASCII is escaped."""
    told = _TOLD.get()
    sentence = sentence.encode("ascii", "backslashreplace").decode()
    if told is not None and sentence not in told:
        told.append(sentence)


class NoticesMiddleware:
    """Adds the header to replies, and sets the policy on unknown fields."""

    def __init__(self, app: ASGIApp, unknown_fields: UnknownFields) -> None:
        self._app = app
        self._unknown_fields = unknown_fields
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told: list[str] = []

        async def send_with_notices(message: Message) -> None:
            if message["type"] == "http.response.start" and told:
                MutableHeaders(scope=message)[NOTICE] = shortened(" ".join(told), MAX_MESSAGE)
                self._log(told)
            await send(message)

        tokens = UNKNOWN_FIELDS.set(self._unknown_fields), _TOLD.set(told)
        try:
            await self._app(scope, receive, send_with_notices)
        finally:
            UNKNOWN_FIELDS.reset(tokens[0])
            _TOLD.reset(tokens[1])

    def _log(self, told: list[str]) -> None:
        for sentence in told:
            if sentence not in self._logged and len(self._logged) < MOST_LOGGED:
                self._logged.add(sentence)
                LOG.warning("A client was told: %s It is told again in each reply, and not logged again.", sentence)
