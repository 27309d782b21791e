"""Which session a request belongs to: by body, by header, or the caller's own; each caller has sessions of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from server.http.auth import caller_of
from server.http.errors import invalid

SESSION_HEADER = "x-session-id"
DEFAULT_SESSION = "local"
VALID_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class SessionKey:
    """tenant: whose it is, see `Caller`."""

    tenant: str
    session_id: str


def session_of(connection: HTTPConnection, named: str | None) -> SessionKey:
    """named: by the body. Raises ApiError for a bad name."""
    session_id = named or connection.headers.get(SESSION_HEADER, DEFAULT_SESSION)
    if not VALID_ID.fullmatch(session_id):
        message = "A session id has 1 to 128 printable ASCII characters and no spaces."
        raise invalid(message, "session_id" if named else "X-Session-Id")
    return SessionKey(caller_of(connection).tenant, session_id)
