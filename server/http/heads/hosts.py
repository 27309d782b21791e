"""Which names a server answers to: a web page must not use one that has no keys, by having a name of its own resolve to
this machine's loopback address (DNS rebinding). Such a request has the page's name as its Host.

A plain ASGI middleware, which decides before the body is read. Knows nothing of keys.
"""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import ApiError, OnError, shortened
from server.http.heads.faults import host_name

LONGEST_NAME = 100  # characters of a stranger's name that are told
ANY = "*"


class HostCheck:
    """Answers 403 to a request for another name than localhost, a loopback address, the address that it came to, the
    machine's own name, or one of those `given`, of which "*" stands for all. Without any given it looks only at what
    came to a loopback address. A request without a Host comes from no browser, and passes."""

    def __init__(self, app: ASGIApp, given: frozenset[str], on_error: OnError) -> None:
        self._app = app
        self._is_everywhere = bool(given)
        own = socket.gethostname().lower()
        self._names = given | {"localhost", own, own.partition(".")[0]}
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            self._on_error(error)
            await error.response(scope)(scope, receive, send)

    def _refusal(self, scope: Scope) -> ApiError | None:
        host, own = Headers(scope=scope).get("host"), address_of((scope.get("server") or ("",))[0])
        if host is None or ANY in self._names or not (self._is_everywhere or _is_loopback(own)):
            return None
        name = host_name(host) or ""
        address = address_of(name)
        if name in self._names or name.endswith(".localhost") or _is_loopback(address) or (address and address == own):
            return None
        told = shortened(name, LONGEST_NAME)
        message = (
            f"This server does not answer to the name '{told}'. If that is its name, --allowed-hosts must have it."
        )
        return ApiError(403, message, "Host", "host_not_allowed")


def is_every_address(host: str) -> bool:
    """Whether a server that listens on `host` is to be reached from elsewhere, under whatever name it has there."""
    address = address_of(host)
    return not host or (address is not None and address.is_unspecified)


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """The address that a text is; None where it is none."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _is_loopback(address: IPv4Address | IPv6Address | None) -> bool:
    return address is not None and address.is_loopback
