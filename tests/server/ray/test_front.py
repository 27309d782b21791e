"""What clients see when replicas are lost or full: every reply ends in an end or an error of the API's form."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from server.http.errors import ApiError
from server.ray.front import Front, ReplicaLost
from server.ray.http_call import HttpRequest, ReplyHead

STREAM = ReplyHead(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
PLAIN = ReplyHead(200, [(b"content-type", b"application/json")])
Step = ReplyHead | bytes | Exception


class Replicas:
    """Each attempt plays the next script; an exception in it is raised."""

    def __init__(self, *scripts: list[Step]) -> None:
        self._scripts = list(scripts)
        self.asked: list[tuple[HttpRequest, str | None]] = []
        self.num_closed = 0

    async def ask(self, request: HttpRequest, session: str | None) -> AsyncGenerator[ReplyHead | bytes]:
        self.asked.append((request, session))
        try:
            for step in self._scripts.pop(0):
                if isinstance(step, Exception):
                    raise step
                yield step
                await asyncio.sleep(0)
        finally:
            self.num_closed += 1


def exchange(
    replicas: Replicas, path: str = "/v1/completions", body: bytes = b"{}", leaves: bool = False
) -> tuple[int, bytes, bool]:
    """Status, body, and whether the reply came to its end."""
    sent: list[Message] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"x-session-id", b"s1")],
        "client": ("127.0.0.1", 1),
    }
    pieces = [
        {"type": "http.request", "body": body[:1], "more_body": True},
        {"type": "http.request", "body": body[1:], "more_body": False},
    ]

    async def receive() -> Message:
        if pieces:
            return pieces.pop(0)
        if not leaves:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Front(replicas.ask, most_bytes=100)(scope, receive, send))
    whole = b"".join(message.get("body", b"") for message in sent)
    return (sent[0]["status"] if sent else 0), whole, bool(sent) and not sent[-1].get("more_body", False)


def test_a_reply_passes_as_it_is_and_its_session_is_named() -> None:
    replicas = Replicas([STREAM, b"data: 1\n\n", b"data: [DONE]\n\n"])
    assert exchange(replicas) == (200, b"data: 1\n\ndata: [DONE]\n\n", True)
    ((request, session),) = replicas.asked
    assert (request.method, request.path, request.body, session) == ("POST", "/v1/completions", b"{}", "s1")


def test_a_request_whose_replica_dies_before_it_answers_is_asked_of_another_once() -> None:
    assert exchange(Replicas([ReplicaLost()], [PLAIN, b"{}"]))[:2] == (200, b"{}")
    status, body, _ = exchange(Replicas([ReplicaLost()], [ReplicaLost()]))
    assert (status, json.loads(body)["error"]["code"]) == (503, "replica_lost")


@pytest.mark.parametrize(
    ("path", "read"),
    [
        ("/v1/completions", lambda frames: json.loads(frames[-2].removeprefix("data: "))["error"]["code"]),
        ("/v1/chat/completions", lambda frames: json.loads(frames[-2].removeprefix("data: "))["error"]["code"]),
        ("/v1/messages", lambda frames: json.loads(frames[-1].removeprefix("event: error\ndata: "))["error"]["code"]),
        ("/v1/responses", lambda frames: json.loads(frames[-1].removeprefix("event: error\ndata: "))["code"]),
    ],
)
def test_a_stream_whose_replica_dies_ends_in_an_error_event(path: str, read: Any) -> None:
    replicas = Replicas([STREAM, b"data: 1\n\n", ReplicaLost()], [STREAM, b"never asked"])
    status, body, is_whole = exchange(replicas, path)
    assert (status, is_whole, len(replicas.asked)) == (200, True, 1)
    frames = body.decode().strip().split("\n\n")
    assert frames[0] == "data: 1"
    assert read(frames) == "replica_lost"
    assert (frames[-1] == "data: [DONE]") == ("completions" in path)


def test_a_plain_reply_that_was_begun_is_never_made_to_look_whole() -> None:
    status, body, is_whole = exchange(Replicas([PLAIN, b'{"a":', ReplicaLost()]))
    assert (status, body, is_whole) == (200, b'{"a":', False)


def test_full_queues_are_a_429_with_a_time_to_come_back() -> None:
    refused = ApiError(429, "Too many requests are waiting for a replica.", None, "queue_full", 1)
    replicas = Replicas([refused])
    status, body, _ = exchange(replicas)
    assert (status, json.loads(body)["error"]["code"], len(replicas.asked)) == (429, "queue_full", 1)


def test_a_body_that_is_too_large_is_refused_before_a_replica_is_asked() -> None:
    replicas = Replicas()
    status, body, _ = exchange(replicas, body=bytes(101))
    assert (status, json.loads(body)["error"]["code"], replicas.asked) == (413, "body_too_large", [])


def test_a_client_that_leaves_is_heard_of() -> None:
    replicas = Replicas([STREAM, *[b"data: 1\n\n"] * 1000])
    _, body, is_whole = exchange(replicas, leaves=True)
    assert not is_whole
    assert len(body) < 9000
    assert replicas.num_closed == 1
