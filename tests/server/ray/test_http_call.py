"""An application called without a connection gives the same reply, in order, and hears of a reader that leaves."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from server.ray.http_call import HttpRequest, ReplyHead, call

REQUEST = HttpRequest("POST", "/echo", b"a=1", [(b"x-session-id", b"s1")], b"body", ("10.0.0.1", 7))


async def collected(app: ASGIApp, request: HttpRequest = REQUEST) -> list[ReplyHead | bytes]:
    return [piece async for piece in call(app, request)]


def streaming(pieces: list[bytes], between: Callable[[], Any] | None = None) -> ASGIApp:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            if between is not None:
                await between()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def test_a_request_arrives_whole_and_its_reply_comes_back() -> None:
    async def echo(request: Request) -> PlainTextResponse:
        client = request.client
        assert client is not None
        told = (await request.body(), request.query_params["a"], request.headers["x-session-id"], client.host)
        return PlainTextResponse(repr(told), 201)

    app = Starlette(routes=[Route("/echo", echo, methods=["POST"])])
    head, body = asyncio.run(collected(app))
    assert isinstance(head, ReplyHead)
    assert head.status == 201
    assert body == repr((b"body", "1", "s1", "10.0.0.1")).encode()


def test_what_is_sent_at_once_comes_together_and_what_is_not_as_it_comes() -> None:
    pieces = [b"one ", b"two ", b"three"]
    assert asyncio.run(collected(streaming(pieces))) == [ReplyHead(200, [(b"a", b"b")]), b"one two three"]
    slowly = asyncio.run(collected(streaming(pieces, lambda: asyncio.sleep(0.01))))
    assert slowly[1:] == pieces


def test_a_reader_that_leaves_is_heard_of() -> None:
    heard: list[str] = []

    async def app(_: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "http.request"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        heard.append((await receive())["type"])

    async def leave() -> None:
        pieces = call(app, REQUEST)
        await anext(pieces)
        await pieces.aclose()

    asyncio.run(leave())
    assert heard == ["http.disconnect"]


def test_an_application_that_fails_says_so_after_what_it_sent() -> None:
    async def app(_: Scope, __: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ValueError("broken")

    async def read() -> list[Any]:
        got: list[Any] = []
        try:
            async for piece in call(app, REQUEST):
                got.append(piece)
        except ValueError as error:
            got.append(str(error))
        return got

    assert asyncio.run(read()) == [ReplyHead(200, []), "broken"]
