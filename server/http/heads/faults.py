"""What must hold of a request's head beyond what the parser checks: two programs on the way of a request must not be
able to read it as two different ones, and what it expects must be known."""

from __future__ import annotations

import re
from collections.abc import Sequence

from server.http.errors import ApiError, invalid

WITHOUT_HOST = frozenset({"0.9", "1.0"})  # versions of HTTP in which a request needs none
HOST = re.compile(r"(\[[0-9A-Za-z:.%~_-]+\]|[0-9A-Za-z._~!$&'()*+,;=%-]*)(?::\d*)?")

Headers = Sequence[tuple[bytes, bytes]]  # names in lower case


def fault_of(version: str, headers: Headers) -> ApiError | None:
    """What is wrong with a request's head, if anything is. Its connection is to be closed then, since it may not be
    clear where the request ends."""
    hosts, codings = _values(headers, b"host"), _values(headers, b"transfer-encoding")
    if len(hosts) > 1 or not (hosts or version in WITHOUT_HOST):
        return invalid(f"The request has {len(hosts)} Host headers; it must have one.", "Host", "invalid_host")
    if hosts and host_name(hosts[0]) is None:
        return invalid("The Host header is no name or address.", "Host", "invalid_host")
    if codings and (version in WITHOUT_HOST or [coding.lower() for coding in codings] != ["chunked"]):
        message = "The Transfer-Encoding header may be there once, in HTTP/1.1, and must be chunked."
        return invalid(message, "Transfer-Encoding", "invalid_transfer_encoding")
    if any(wish.lower() != "100-continue" for wish in _values(headers, b"expect")):
        message = "The Expect header must be 100-continue; this server knows of nothing else."
        return ApiError(417, message, "Expect", "unsupported_expectation")
    return None


def host_name(host: str) -> str | None:
    """The name or address in a Host header, without its port, and in small letters; None where it is none."""
    match = HOST.fullmatch(host)
    return None if match is None else as_compared(match[1])


def as_compared(name: str) -> str:
    """A host's name or address in the one form in which two are compared."""
    return name.strip("[]").removesuffix(".").lower()


def _values(headers: Headers, name: bytes) -> list[str]:
    return [value.strip().decode("latin-1") for each, value in headers if each == name]
