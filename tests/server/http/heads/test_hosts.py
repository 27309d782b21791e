"""Whom a request is for: a page of the web that has its own name resolve to this machine uses no server on it."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from server.config import ServerSettings
from server.http.heads.hosts import HostCheck, is_every_address
from tests.server.servers import RunningServer, make_model_folder, running_server

STRANGERS = ("evil.example", "evil.example:8000", "localhost.evil.example", "10.0.0.7", "[2001:db8::1]:80", "")
OWN = ("localhost", "LocalHost:8000", "localhost.", "app.localhost", "127.0.0.1:9", "127.1.2.3", "[::1]:8000", "[::1]")


@contextmanager
def server_with(folder: Path, **given: Any) -> Iterator[RunningServer]:
    model = make_model_folder(folder / "toy")
    with running_server(ServerSettings(model=str(model), drain_seconds=2, **given)) as server:
        yield server


def asked(server: RunningServer, host: str, path: str = "/v1/models", **headers: str) -> httpx.Response:
    return server.http.get(path, headers={"Host": host, **headers})


@pytest.mark.parametrize("host", STRANGERS)
@pytest.mark.parametrize("path", ["/", "/v1/models", "/health", "/metrics", "/nothing"])
def test_a_server_of_this_machine_alone_is_not_used_by_another_name(
    server: RunningServer, host: str, path: str
) -> None:
    reply = asked(server, host, path)
    assert reply.status_code == 403
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("host_not_allowed", "Host")
    assert "--allowed-hosts" in error["message"]
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize("host", [*OWN, socket.gethostname(), socket.gethostname().upper() + ":8000"])
def test_it_answers_to_its_own_names_and_addresses(server: RunningServer, host: str) -> None:
    assert asked(server, host).status_code == 200


def test_with_keys_any_name_is_fine(tmp_path: Path) -> None:
    with server_with(tmp_path, api_keys="alice") as server:
        assert asked(server, "gander.example", **{"X-Api-Key": "alice"}).status_code == 200
        assert asked(server, "gander.example").status_code == 401


def test_on_every_address_any_name_is_fine_as_containers_probes_and_scrapes_need(tmp_path: Path) -> None:
    with server_with(tmp_path, host="0.0.0.0") as server:
        for host in ("gander:8000", "10.42.0.7:8000", "gander.default.svc.cluster.local", "[fd00::7]:8000"):
            for path in ("/ready", "/metrics", "/v1/models"):
                assert asked(server, host, path).status_code == 200, (host, path)


def test_a_given_name_is_answered_and_then_no_other_with_keys_and_on_every_address_too(tmp_path: Path) -> None:
    with server_with(tmp_path, host="0.0.0.0", api_keys="alice", allowed_hosts="gander.example, Other") as server:
        for host in ("gander.example:80", "GANDER.example.", "other", *OWN):
            assert asked(server, host, **{"X-Api-Key": "alice"}).status_code == 200, host
        assert [asked(server, host).status_code for host in STRANGERS] == [403] * len(STRANGERS)


def test_a_star_stands_for_every_name(tmp_path: Path) -> None:
    with server_with(tmp_path, allowed_hosts="*") as server:
        assert [asked(server, host).status_code for host in STRANGERS] == [200] * len(STRANGERS)


@pytest.mark.parametrize("hosts", ["", "a,", "http://a", "a:8000", "a b", "*.a", "a/b", "[::1]:80"])
def test_what_is_no_name_is_no_setting(hosts: str) -> None:
    with pytest.raises(ValidationError, match="is no host's name"):
        ServerSettings(allowed_hosts=hosts)


def status_at(host: str | None, server: tuple[str, int | None] | None, *given: str) -> int:
    """What an application answers, called without a connection, which came to the address `server`."""
    statuses = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        statuses.append(message.get("status"))

    headers = [] if host is None else [(b"host", host.encode())]
    scope = {"type": "http", "path": "/", "method": "GET", "headers": headers, "server": server}
    asyncio.run(HostCheck(app, frozenset(given), lambda _: None)(scope, None, send))  # type: ignore[arg-type]
    return int(statuses[0])


def test_without_a_connection_to_a_loopback_address_no_name_is_refused() -> None:
    for server in (None, ("testserver", 80), ("10.0.0.7", 8000), ("/run/gander.sock", None)):
        assert status_at("evil.example", server) == 200, server
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert status_at("evil.example", (address, 8000)) == 403, address
        assert status_at(None, (address, 8000)) == 200, address


def test_the_address_that_a_request_came_to_is_its_hosts_name_for_probes() -> None:
    assert status_at("10.42.0.7:8000", ("10.42.0.7", 8000), "gander.example") == 200
    assert status_at("[fd00::7]", ("fd00::7", 8000), "gander.example") == 200
    assert status_at("10.42.0.8", ("10.42.0.7", 8000), "gander.example") == 403


def test_every_address_is_one_that_others_reach() -> None:
    hosts = ("0.0.0.0", "::", "", "127.0.0.1", "::1", "localhost", "10.0.0.7")
    assert [is_every_address(host) for host in hosts] == [True, True, True, False, False, False, False]
