"""Fetches a picture's file from a host that the server's settings list.

Knows nothing of pictures. Invariant: no connection goes to an address outside the public internet, whatever a name
resolves to and wherever a redirect leads: the address that is connected to is the one that was checked.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv6Address, IPv6Network
from ssl import SSLContext
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpcore2

from server.http.errors import ApiError, invalid, shortened
from server.http.heads.faults import as_compared
from server.http.heads.hosts import address_of
from server.prompts.images.image_file import PARAM

SECONDS = 10.0  # for one file, redirects included
MOST_REDIRECTS = 3
MOST_FETCHES = 8  # at a time
LONGEST_NAME = 100  # characters of a stranger's host that are told
PORTS = {"http": 80, "https": 443}
HEADERS = [("User-Agent", "gander"), ("Accept", "image/*"), ("Accept-Encoding", "identity")]
REDIRECTS = frozenset({301, 302, 303, 307, 308})
# Of IPv6, addresses that have one of IPv4 within them, which a router may connect to.
TRANSLATED = tuple(map(IPv6Network, ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16")))

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class NotPublic(Exception):
    """A host has an address outside the public internet."""


async def resolved(host: str, port: int) -> Sequence[str]:
    """The addresses of a host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


def is_public(text: str) -> bool:
    """Whether an address is one of the public internet's."""
    address = address_of(text)
    if address is None or (isinstance(address, IPv6Address) and any(address in network for network in TRANSLATED)):
        return False
    return address.is_global and not address.is_multicast


class PublicBackend(httpcore2.AsyncNetworkBackend):
    """Connects to hosts all of whose addresses are public. inner: connects to an address."""

    def __init__(self, resolve: Resolve = resolved, inner: httpcore2.AsyncNetworkBackend | None = None) -> None:
        self._resolve = resolve
        self._inner = inner or httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolve(host, port)
        if not addresses or not all(map(is_public, addresses)):
            raise NotPublic(host)
        failure: Exception | None = None
        for address in addresses:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as error:
                failure = error
        assert failure is not None
        raise failure


class ImageFetcher:
    """ssl_context: of connections by https; by default the system's."""

    def __init__(self, backend: PublicBackend | None = None, ssl_context: SSLContext | None = None) -> None:
        self._backend = backend or PublicBackend()
        self._ssl_context = ssl_context
        self._places = asyncio.Semaphore(MOST_FETCHES)

    async def fetch(self, url: str, hosts: Sequence[str], most_bytes: int) -> bytes:
        """The file at an http or https URL. hosts: see `image_hosts` of the settings. Raises ApiError."""
        try:
            async with self._places, asyncio.timeout(SECONDS):
                return await self._fetch(url, hosts, most_bytes)
        except (TimeoutError, httpcore2.TimeoutException):
            raise _refused(f"did not come within {SECONDS:g} s") from None
        except NotPublic:
            raise _refused("has a host whose address is not public") from None
        except (OSError, ValueError, httpcore2.NetworkError, httpcore2.ProtocolError) as error:
            raise _refused(f"cannot be fetched: {shortened(str(error), LONGEST_NAME)}") from None

    async def _fetch(self, url: str, hosts: Sequence[str], most_bytes: int) -> bytes:
        async with httpcore2.AsyncConnectionPool(self._ssl_context, network_backend=self._backend) as pool:
            for _ in range(MOST_REDIRECTS + 1):
                async with pool.stream("GET", _checked(url, hosts), headers=HEADERS) as response:
                    location = _header(response, b"location") if response.status in REDIRECTS else None
                    if location is None:
                        return await _content(response, most_bytes)
                    url = urljoin(url, location)
        raise _refused(f"leads to more than {MOST_REDIRECTS} redirects")


def _checked(url: str, hosts: Sequence[str]) -> httpcore2.URL:
    """The URL as it is connected to. Raises ApiError where its host is not among those listed."""
    try:
        target, has_user = httpcore2.URL(url.encode("ascii")), urlsplit(url).username is not None
    except ValueError:
        raise _refused("is not a valid one") from None
    scheme, host = target.scheme.decode(), as_compared(target.host.decode())
    if scheme not in PORTS or target.port not in (None, PORTS[scheme]) or has_user:
        raise _refused("must be of http or https, on its usual port, without a user")
    if not any(fnmatchcase(host, pattern) for pattern in hosts):
        raise _refused(f"has the host '{shortened(host, LONGEST_NAME)}', which --image-urls does not list")
    return target


async def _content(response: httpcore2.Response, most_bytes: int) -> bytes:
    if response.status != 200:
        raise _refused(f"was answered with status {response.status}")
    content = bytearray()
    async for part in response.aiter_stream():
        content += part
        if len(content) > most_bytes:
            raise _refused(f"is of a file that has more than {most_bytes:,} bytes", "above_limit")
    return bytes(content)


def _header(response: httpcore2.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for each, value in response.headers if each.lower() == name), None)


def _refused(fault: str, code: str = "invalid_image") -> ApiError:
    return invalid(f"A picture's URL {fault}.", PARAM, code)
