"""Connections that are silent, slow, too many or too talkative: they end, and others are answered."""

import logging
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path

import pytest

from server.config import ServerSettings
from server.http.repeated_lines import KINDS, SECONDS, OnceAMinute
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
SHORT, LONG = 0.4, 30.0  # seconds


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Few connections, little time, and keys."""
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    settings = ServerSettings(
        model=str(folder),
        drain_seconds=2,
        max_connections=12,
        max_connections_per_address=6,
        head_seconds=SHORT,
        body_seconds=SHORT,
        keep_alive_seconds=0.2,
        api_keys="alice",
    )
    with running_server(settings) as running:
        yield running


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    settings = ServerSettings(model=str(folder), drain_seconds=2, max_connections=12, max_connections_per_address=6)
    with running_server(settings) as running:
        yield running


@contextmanager
def connections(server: RunningServer, count: int, source: str = "127.0.0.9") -> Iterator[list[socket.socket]]:
    """Open ones of one address, of 127.0.0.0/8."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with ExitStack() as stack:
        made = [socket.create_connection((host, int(port)), LONG, (source, 0)) for _ in range(count)]
        yield [stack.enter_context(connection) for connection in made]


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    pieces = []
    try:
        while piece := connection.recv(65536):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)


def status_of(reply: bytes) -> int:
    return int(reply.split(b" ", 2)[1])


def health(connection: socket.socket) -> bool:
    """Ask on an open connection, and read the whole answer."""
    connection.settimeout(LONG)
    connection.sendall(HEALTH)
    return answered(connection)


def answered(connection: socket.socket) -> bool:
    reply = HTTPResponse(connection)
    reply.begin()
    reply.read()
    return reply.status == 200


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except ConnectionResetError:
        return False


def test_a_head_without_end_is_refused_before_its_key_is_looked_at(patient: RunningServer) -> None:
    with connections(patient, 1) as (connection,):
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nX-Api-Key: ")
        num_sent = 0
        try:
            while num_sent < 8 * 2**20:
                num_sent += connection.send(b"k" * 65536)
        except OSError:
            pass
        assert num_sent < 8 * 2**20


@pytest.mark.parametrize(
    "head",
    [b"X: " + b"k" * 40_000 + b"\r\n", b"".join(b"X-%d: y\r\n" % i for i in range(6000))],
    ids=["long", "many"],
)
def test_a_large_head_is_431(patient: RunningServer, head: bytes) -> None:
    with connections(patient, 1) as (connection,):
        connection.sendall(b"GET /health HTTP/1.1\r\n" + head + b"\r\n")
        reply = read_all(connection)
    assert status_of(reply) == 431
    assert b'"code": "head_too_large"' in reply
    assert b"x-request-id: req_" in reply


def test_trailers_of_any_size_are_not_taken_in(patient: RunningServer) -> None:
    with connections(patient, 1) as (connection,):
        start = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: "
        connection.sendall(start)
        num_sent = 0
        try:
            while num_sent < 8 * 2**20:
                num_sent += connection.send(b"k" * 65536)
        except OSError:
            pass
        assert num_sent < 8 * 2**20


def test_a_body_in_tiny_chunks_is_read(patient: RunningServer) -> None:
    body = b'{"prompt": "' + b"x" * 3000 + b'", "max_tokens": 1}'
    with connections(patient, 1) as (connection,):
        head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        connection.sendall(b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 30, letter) for letter in body) + b"0\r\n\r\n")
        assert status_of(connection.recv(65536)) == 200


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost",
        b"POST /v1/completions HTTP/1.1\r\nX-Api-Key: alice\r\nContent-Length: 5\r\n\r\n{",
    ],
    ids=["silent", "head", "body"],
)
def test_a_request_that_does_not_come_is_given_up(strict: RunningServer, beginning: bytes) -> None:
    with connections(strict, 1) as (connection,):
        connection.sendall(beginning)
        reply = read_all(connection)
    assert status_of(reply) == 408
    assert b'"code": "too_slow"' in reply


def test_a_second_request_that_does_not_come_is_given_up(strict: RunningServer) -> None:
    with connections(strict, 1) as (connection,):
        assert health(connection)
        connection.sendall(HEALTH[:10])
        assert status_of(read_all(connection)) == 408


def test_a_reply_may_take_longer_than_its_request(strict: RunningServer) -> None:
    body = b'{"prompt": "{\\"say\\": \\"abcdef\\", \\"per_step\\": 1, \\"delay\\": 0.2}", "max_tokens": 6}'
    with connections(strict, 1) as (connection,):
        head = b"POST /v1/completions HTTP/1.1\r\nX-Api-Key: alice\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + HEALTH[:10])
        reply = connection.recv(65536)
        assert status_of(reply) == 200
        while b"abcdef" not in reply:
            reply += connection.recv(65536)
        while not reply.endswith(b"}"):
            reply += connection.recv(65536)
        connection.sendall(HEALTH[10:])
        assert answered(connection)


def test_silent_connections_make_room_for_later_ones_of_their_address_first(patient: RunningServer) -> None:
    with connections(patient, 3, "127.0.0.2") as others, connections(patient, 20) as silent:
        wait_until(lambda: [is_open(connection) for connection in silent] == [False] * 14 + [True] * 6)
        assert all(health(connection) for connection in [*others, *silent[14:]])


def test_connections_at_work_are_not_given_up_for_others(patient: RunningServer) -> None:
    body = b'{"prompt": "{\\"delay\\": 0.05}", "max_tokens": 4000, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with connections(patient, 6) as busy:
        for connection in busy:
            connection.sendall(head + body)
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        with connections(patient, 1) as (late,):
            reply = read_all(late)
        assert status_of(reply) == 503
        assert b'"code": "too_many_connections"' in reply
        with connections(patient, 1, "127.0.0.3") as (other,):
            assert health(other)
        assert all(is_open(connection) for connection in busy)


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from server.config import ServerSettings
from server.runner import run
from tests.server.servers import FAKE_WORKER
sys.exit(run(ServerSettings(model={model!r}, port={port}, drain_seconds=0), FAKE_WORKER))
"""


def test_silent_connections_beyond_the_descriptors_lock_nobody_out_and_are_logged_once(tmp_path: Path) -> None:
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 500, "the test itself needs descriptors"
    folder = make_model_folder(tmp_path / "toy")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    program = textwrap.dedent(PROGRAM).format(model=str(folder), port=port)
    with (tmp_path / "log").open("w") as log, ExitStack() as stack:
        process = subprocess.Popen([sys.executable, "-c", program], stderr=log, stdout=log)
        stack.callback(process.wait)
        stack.callback(process.terminate)

        def ask(source: str) -> bool:
            try:
                with socket.create_connection(("127.0.0.1", port), LONG, (source, 0)) as connection:
                    return health(connection)
            except ConnectionRefusedError:
                return False

        wait_until(lambda: ask("127.0.0.2"))
        for _ in range(400):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), LONG, ("127.0.0.9", 0)))
        for source in ("127.0.0.2", "127.0.0.9", "127.0.0.4"):
            assert ask(source), source
    lines = (tmp_path / "log").read_text()
    assert lines.count("Too many connections") == 1
    assert "Traceback" not in lines
    assert len(lines.splitlines()) < 40


def line(message: str) -> logging.LogRecord:
    return logging.LogRecord("gander", logging.WARNING, "", 0, message, (), None)


def test_a_line_that_anybody_can_cause_is_shown_once_a_minute_with_their_number() -> None:
    now = 1000.0
    lines = OnceAMinute(lambda: now)
    shown = [lines.filter(line(f"{KINDS[0]}: number {number}")) for number in range(5)]
    assert shown == [True, False, False, False, False]
    assert lines.filter(line(KINDS[1]))
    assert all(lines.filter(line("Something else.")) for _ in range(3))
    now += SECONDS
    again = line(f"{KINDS[0]}: again")
    assert lines.filter(again)
    assert again.getMessage() == f"{KINDS[0]}: again (4 more like it were not shown)"
