"""Connections that are silent, slow, too many or too talkative: they end, and others are answered."""

import asyncio
import logging
import random
import resource
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from server.config import ServerSettings
from server.http.connections import WAITING_BYTES, ConnectionBook, ConnectionLimits, GuardedProtocol
from server.http.repeated_lines import KINDS, SECONDS, OnceAMinute
from server.process.serving import http_config
from tests.server.servers import RunningServer, make_model_folder, running_server, wait_until

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
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
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: ")
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
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        reply = read_all(connection)
    assert status_of(reply) == 431
    assert b'"code": "head_too_large"' in reply
    assert b"x-request-id: req_" in reply


def test_trailers_of_any_size_are_not_taken_in(patient: RunningServer) -> None:
    with connections(patient, 1) as (connection,):
        start = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: "
        )
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
        head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head)
        connection.sendall(b"".join(b"1;%s\r\n%c\r\n" % (b"e" * 30, letter) for letter in body) + b"0\r\n\r\n")
        assert status_of(connection.recv(65536)) == 200


@pytest.mark.parametrize(
    "beginning",
    [
        b"",
        b"GET /health HTTP/1.1\r\nHost",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: alice\r\nContent-Length: 5\r\n\r\n{",
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
        head = POST + b"X-Api-Key: alice\r\n"
        connection.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body + HEALTH[:10])
        reply = connection.recv(65536)
        assert status_of(reply) == 200
        while b"abcdef" not in reply:
            reply += connection.recv(65536)
        while not reply.endswith(b"}"):
            reply += connection.recv(65536)
        connection.sendall(HEALTH[10:])
        assert answered(connection)


def test_clients_and_balancers_close_a_silent_connection_first(patient: RunningServer) -> None:
    """A request that is sent while the server closes is lost."""
    assert http_config(patient.service).timeout_keep_alive > 60


def test_silent_connections_make_room_for_later_ones_of_their_address_first(patient: RunningServer) -> None:
    with connections(patient, 3, "127.0.0.2") as others, connections(patient, 20) as silent:
        wait_until(lambda: [is_open(connection) for connection in silent] == [False] * 14 + [True] * 6)
        assert all(health(connection) for connection in [*others, *silent[14:]])


def test_connections_at_work_are_not_given_up_for_others(patient: RunningServer) -> None:
    body = b'{"prompt": "{\\"delay\\": 0.05}", "max_tokens": 4000, "stream": true}'
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
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


class RecordingTransport(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.is_read = True
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def protocol_of(app: Any) -> tuple[GuardedProtocol, RecordingTransport]:
    """A connection to an application, and its other side."""
    limits = ConnectionLimits(most=9, most_per_address=9, head_bytes=32768, head_seconds=LONG, body_seconds=LONG)
    config = uvicorn.Config(app, log_config=None, access_log=False)
    book = ConnectionBook(limits, lambda _: None)
    protocol = GuardedProtocol(book, config=config, server_state=ServerState(), app_state={})
    transport = RecordingTransport()
    protocol.connection_made(transport)
    return protocol, transport


async def until_idle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that says a request's path and body."""
    body, is_more = b"", True
    while is_more and (message := await receive())["type"] == "http.request":
        body, is_more = body + message["body"], message["more_body"]
    said = scope["path"].encode() + b" " + body + b"|"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(said))]})
    await send({"type": "http.response.body", "body": said})


def framed(body: bytes, rng: random.Random) -> bytes:
    """The end of a request's head, and its body, by length or in chunks."""
    if rng.random() < 0.5:
        return b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunk = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
    return b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"


async def answers_to(app: Any, asked: Sequence[bytes], longest: int, rng: random.Random) -> list[bytes]:
    """What an application answers to requests on one connection, whose bytes come in pieces of up to `longest`."""
    protocol, transport = protocol_of(app)
    data = b"".join(asked)
    while data:
        size = rng.randrange(longest) + 1
        protocol.data_received(data[:size])
        data = data[size:]
        if rng.random() < 0.5 or not transport.is_read:
            await until_idle()
    for _ in asked:
        await until_idle()
    assert transport.is_read
    protocol.connection_lost(None)
    return [answer.partition(b"\r\n\r\n")[2] for answer in transport.written.split(b"HTTP/1.1 200 OK")[1:]]


@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\n\n", b"\r\n\r\n\r\n"])
def test_a_few_requests_wait_behind_the_one_that_is_answered_and_the_rest_is_not_read(end: bytes) -> None:
    reads, num_received = b"GET / HTTP/1.1\r\nHost: a" + end, 0

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def run() -> None:
        nonlocal num_received
        protocol, transport = protocol_of(app)
        for _ in range(40):
            if transport.is_read and not transport.is_closed:
                protocol.data_received(reads * 1000)
                num_received += 1
            await until_idle()
            assert len(protocol.pipeline) < 8
        assert num_received * 1000 * len(reads) < 2 * max(WAITING_BYTES, 1000 * len(reads))
        protocol.connection_lost(None)
        await until_idle()

    asyncio.run(run())


def test_pipelined_requests_are_answered_in_order_however_they_are_cut() -> None:
    def request(number: int, rng: random.Random) -> tuple[bytes, bytes]:
        """A request and what its answer says."""
        body = rng.choice([b"", b"\r\n\r\n", b"x" * rng.randrange(300), b"\r\n\r\n" * rng.randrange(300)])
        head = b"POST /%d HTTP/1.1\r\nHost: a\r\nA: %s\r\n" % (number, b"a" * rng.randrange(100))
        return head + framed(body, rng), b"/%d %s|" % (number, body)

    async def run(rng: random.Random) -> None:
        asked, said = zip(*(request(number, rng) for number in range(60)), strict=True)
        assert await answers_to(echo, asked, rng.choice([3, 50, 5000, 100_000]), rng) == list(said)

    for seed in range(8):
        asyncio.run(run(random.Random(seed)))


def test_a_client_that_leaves_with_another_request_under_way_is_noticed(patient: RunningServer) -> None:
    body = b'{"prompt": "{\\"delay\\": 0.05, \\"per_step\\": 1}", "max_tokens": 4000}'
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    with connections(patient, 1) as (connection,):
        connection.sendall(head + body + HEALTH * 10)
        wait_until(lambda: patient.served.client.num_open == 1)
    wait_until(lambda: patient.served.client.num_open == 0, 60)


PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
from server.config import ServerSettings
from server.process.runner import run
from tests.server.servers import FAKE_WORKER
sys.exit(run(ServerSettings(model={model!r}, port={port}, drain_seconds=0), command=FAKE_WORKER))
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
