"""How long a reply may be: as asked, as far as the context holds it; or as the server says where nobody asks."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from server.config import ServerSettings
from server.http.notices import NOTICE
from tests.server.servers import RunningServer, make_model_folder, running_server

CONTEXT = 4096
USER = {"role": "user", "content": "a"}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {  # by path: the field of the length, and a body without it
    "/v1/completions": ("max_tokens", {"prompt": "a"}),
    "/v1/chat/completions": ("max_completion_tokens", {"messages": [USER]}),
    "/v1/responses": ("max_output_tokens", {"input": "a"}),
    "/v1/messages": ("max_tokens", {"messages": [USER]}),
}


def reply_len(reply: dict[str, Any]) -> int:
    usage = reply["usage"]
    return int(usage.get("completion_tokens") or usage["output_tokens"])


def prompt_len(reply: dict[str, Any]) -> int:
    usage = reply["usage"]
    return int(usage.get("prompt_tokens") or usage["input_tokens"])


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    settings = ServerSettings(model=str(folder), strict_length=True, default_max_tokens=7, drain_seconds=1)
    with running_server(settings) as server:
        yield server


@pytest.mark.parametrize("path", ASKED)
def test_a_reply_that_cannot_be_as_long_as_asked_is_shorter_and_says_so(path: str, server: RunningServer) -> None:
    name, body = ASKED[path]
    reply = server.http.post(path, json=body | {name: 8000, "ignore_eos": True})
    assert reply.status_code == 200, reply.text
    room = CONTEXT - prompt_len(reply.json())
    assert reply.headers[NOTICE] == f"The reply may have {room} tokens, not 8000: the context holds no more."
    assert reply_len(reply.json()) == room
    assert NOTICE not in server.http.post(path, json=body | {name: 5}).headers


@pytest.mark.parametrize("path", ASKED)
def test_a_strict_server_refuses_it(path: str, strict: RunningServer) -> None:
    name, body = ASKED[path]
    reply = strict.http.post(path, json=body | {name: 8000})
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", name)
    assert "maximum context length" in error["message"]


@pytest.mark.parametrize("path", [path for path in ASKED if path != "/v1/messages"])
def test_where_nobody_asks_the_server_says_how_long(path: str, strict: RunningServer) -> None:
    _, body = ASKED[path]
    assert reply_len(strict.http.post(path, json=body | {"ignore_eos": True}).json()) == 7


def test_agents_recognise_that_a_prompt_is_too_long(server: RunningServer) -> None:
    long_user = {"role": "user", "content": "x" * 5000}
    refused = server.http.post("/v1/messages", json={"messages": [long_user], "max_tokens": 5})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    words = re.fullmatch(r"prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
    assert words is not None, error
    assert 5000 < int(words[1]) < 5100
    assert int(words[2]) == CONTEXT - 1
    huge = server.http.post("/v1/messages", json={"messages": [long_user | {"content": "x" * 10**6}], "max_tokens": 5})
    assert huge.json()["error"]["message"].startswith("prompt is too long: ")
    chat = server.http.post("/v1/chat/completions", json={"messages": [long_user]}).json()["error"]
    assert (chat["code"], "maximum context length is 4096 tokens" in chat["message"]) == (
        "context_length_exceeded",
        True,
    )
