"""Heads that two programs could read as two different requests, and expectations that nobody keeps: all are refused."""

import json
import socket
from typing import Any

import pytest

from server.http.heads.faults import fault_of, host_name
from tests.server.servers import RunningServer

LONG = 30.0  # seconds
BODY = b'{"prompt": "hi", "max_tokens": 1}'
PLAIN = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(BODY)
CHUNKED = b"Content-Type: application/json\r\n"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
HOST = b"Host: localhost\r\n"


def answered(server: RunningServer, request: bytes) -> tuple[int, Any]:
    """Status and body of the first answer. A refusal must also end the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), LONG) as connection, connection.makefile("rb") as reply:
        connection.sendall(request)
        status = int(reply.readline().split()[1])
        headers = dict(line.rstrip().lower().split(b": ", 1) for line in iter(reply.readline, b"\r\n"))
        body = json.loads(reply.read(int(headers[b"content-length"])))
        if status != 200:
            assert reply.read() == b""
        return status, body


@pytest.mark.parametrize(
    ("version", "headers", "content", "status", "code"),
    [
        (b"1.1", PLAIN, BODY, 400, "invalid_host"),
        (b"1.1", HOST + HOST + PLAIN, BODY, 400, "invalid_host"),
        (b"1.0", HOST + b"Host: other\r\n" + PLAIN, BODY, 400, "invalid_host"),
        (b"1.1", b"Host: a b\r\n" + PLAIN, BODY, 400, "invalid_host"),
        (b"1.1", b"Host: http://localhost\r\n" + PLAIN, BODY, 400, "invalid_host"),
        (b"1.1", HOST + CHUNKED + b"Transfer-Encoding: gzip, chunked\r\n", CHUNKS, 400, "invalid_transfer_encoding"),
        (b"1.0", HOST + CHUNKED + b"Transfer-Encoding: chunked\r\n", CHUNKS, 400, "invalid_transfer_encoding"),
        (b"1.1", HOST + CHUNKED + b"Transfer-Encoding: chunked\r\n" * 2, CHUNKS, 400, "invalid_http"),
        (b"1.1", HOST + CHUNKED + b"Transfer-Encoding: chunked, gzip\r\n", CHUNKS, 400, "invalid_http"),
        (b"1.1", HOST + PLAIN + b"Transfer-Encoding: chunked\r\n", CHUNKS, 400, "invalid_http"),
        (b"1.1", HOST + PLAIN + b"Expect: a miracle\r\n", BODY, 417, "unsupported_expectation"),
        (b"1.1", HOST + PLAIN + b"Expect: 100-continue\r\nExpect: more\r\n", BODY, 417, "unsupported_expectation"),
    ],
)
def test_what_may_be_read_in_two_ways_or_cannot_be_kept_is_refused(
    server: RunningServer, version: bytes, headers: bytes, content: bytes, status: int, code: str
) -> None:
    request = b"POST /v1/completions HTTP/" + version + b"\r\n" + headers + b"\r\n" + content
    answer, body = answered(server, request)
    assert (answer, body["error"]["code"]) == (status, code)
    assert body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("version", "headers", "content"),
    [
        (b"1.0", PLAIN, BODY),
        (b"1.1", HOST + PLAIN, BODY),
        (b"1.1", HOST + CHUNKED + b"Transfer-Encoding: Chunked\r\n", CHUNKS),
        (b"1.1", b"Host: [::1]:8000\r\n" + PLAIN, BODY),
    ],
)
def test_what_is_clear_is_answered(server: RunningServer, version: bytes, headers: bytes, content: bytes) -> None:
    request = b"POST /v1/completions HTTP/" + version + b"\r\n" + headers + b"\r\n" + content
    assert answered(server, request)[0] == 200


def test_a_host_is_a_name_or_an_address_and_may_have_a_port() -> None:
    names = {
        "A.example:80": "a.example",
        "[::1]:8000": "::1",
        "127.0.0.1": "127.0.0.1",
        "a.": "a",
        "": "",
        "a_b": "a_b",
    }
    assert {host: host_name(host) for host in names} == names
    for host in ("a b", "a/b", "a@b", "::1", "[::1", "a:80:80", "a:http", "é"):
        assert host_name(host) is None, host
        assert fault_of("1.1", [(b"host", host.encode("latin-1"))]) is not None
