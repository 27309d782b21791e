"""Requests that offer another protocol: it is ignored, and what follows their head is their body and nothing else."""

import asyncio
import random
from http.client import HTTPResponse
from typing import Any

import pytest

from tests.server.http.test_connections import answers_to, connections, echo, framed, read_all, status_of
from tests.server.servers import RunningServer

BODY = b'{"prompt": "hi", "max_tokens": 2}'
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
# As Java's HttpClient sends a POST unless it is told HTTP_1_1, and as `curl --http2` does.
JAVA = (
    b"POST /v1/completions HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    + LENGTH
    + b"Host: localhost:8000\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n"
    b"User-Agent: Java-http-client/21.0.2\r\nContent-Type: application/json\r\n\r\n"
)
CURL = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost:8000\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    b"Content-Type: application/json\r\n" + LENGTH + b"\r\n"
)
HIDDEN = b"DELETE /v1/sessions/hidden HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = b"Host: localhost\r\nConnection: keep-alive, Upgrade\r\nUpgrade: %s\r\n"


@pytest.mark.parametrize("head", [JAVA, CURL], ids=["java", "curl"])
@pytest.mark.parametrize("is_apart", [False, True])
def test_a_client_that_offers_http_2_is_answered_in_http_1(server: RunningServer, head: bytes, is_apart: bool) -> None:
    with connections(server, 1) as (connection,):
        for _ in range(2):  # the connection stays
            for piece in (head, BODY) if is_apart else (head + BODY,):
                connection.sendall(piece)
            reply = HTTPResponse(connection)
            reply.begin()
            assert reply.status == 200
            assert b'"text_completion"' in reply.read()


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c", b"TLS/1.2", b"anything"])
def test_a_body_is_never_read_as_a_request(server: RunningServer, protocol: bytes) -> None:
    made = server.post(prompt="hi", max_tokens=1, session_id="hidden")
    assert made.status_code == 200
    head = b"POST /v1/completions HTTP/1.1\r\n" + UPGRADE % protocol + b"Content-Length: %d\r\n\r\n" % len(HIDDEN)
    with connections(server, 1) as (connection,):
        connection.sendall(head + HIDDEN + b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answers = read_all(connection)
    assert [int(answer[:3]) for answer in answers.split(b"HTTP/1.1 ")[1:]] == [400, 200]
    sessions = server.get("/v1/sessions").json()["data"]
    assert "hidden" in {session["id"] for session in sessions}


def test_a_web_socket_is_told_what_the_path_is(server: RunningServer) -> None:
    with connections(server, 1) as (connection,):
        connection.sendall(b"GET /nothing HTTP/1.1\r\n" + UPGRADE % b"websocket" + b"\r\n")
        assert status_of(connection.recv(65536)) == 404


def test_a_connection_through_the_server_is_refused(server: RunningServer) -> None:
    with connections(server, 1) as (connection,):
        connection.sendall(b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n" + HIDDEN)
        reply = read_all(connection)
    assert status_of(reply) == 405
    assert reply.count(b"HTTP/1.1 ") == 1


def test_bodies_are_whole_however_their_bytes_are_cut() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert b"upgrade" not in dict(scope["headers"])
        await echo(scope, receive, send)

    async def run(rng: random.Random) -> None:
        asked, said = [], []
        for number in range(20):
            body = rng.choice([b"", HIDDEN, HIDDEN * 9, b"\r\n\r\n", b"x" * 500])
            asked.append(b"POST /%d HTTP/1.1\r\n" % number + UPGRADE % b"h2c" + framed(body, rng))
            said.append(b"/%d %s|" % (number, body))
        assert await answers_to(app, asked, rng.choice([3, 50, 5000]), rng) == said

    for seed in range(8):
        asyncio.run(run(random.Random(seed)))
