"""Who sent a request: its key's tenant and weight, its session, and the timeout that it asks for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from server.http.auth import caller_of
from server.http.errors import invalid

SESSION_HEADER = "x-session-id"
TIMEOUT_HEADER = "x-request-timeout"
DEFAULT_SESSION = "local"
VALID_ID = re.compile(r"[!-~]{1,128}")


@dataclass(frozen=True, slots=True)
class Sender:
    """tenant, is_admin: see `Caller`; sessions belong to a tenant. weight: see `KeyTerms`. timeout: seconds that the
    request may take, from the X-Request-Timeout header."""

    tenant: str
    session_id: str
    weight: float = 1.0
    is_admin: bool = True
    timeout: float | None = None


def sender_of(connection: HTTPConnection, session_id: str | None) -> Sender:
    """session_id: the body's, which wins over the header. Raises ApiError for an invalid session id or timeout."""
    caller = caller_of(connection)
    named = session_id or connection.headers.get(SESSION_HEADER, DEFAULT_SESSION)
    check_session_id(named, "session_id" if session_id else "X-Session-Id")
    timeout = _seconds(connection.headers.get(TIMEOUT_HEADER))
    return Sender(caller.tenant, named, caller.terms.weight, caller.is_admin, timeout)


def check_session_id(session_id: str, field: str) -> None:
    """Raise ApiError, which names the field, for what cannot be a session's id."""
    if not VALID_ID.fullmatch(session_id):
        raise invalid("A session id has 1 to 128 printable ASCII characters and no spaces.", field)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise invalid("X-Request-Timeout must be a number of seconds above 0.", "X-Request-Timeout")
    return seconds
