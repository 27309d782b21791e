"""What a stream says while its prompt runs, in front of the scripted worker."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from server.engine_client.replies import PromptRun
from server.generation.events import progress_comment, prompt_progress
from server.http.sse import KEEP_ALIVE
from server.schemas.chat import ChatCompletionChunk
from server.schemas.completions import Completion
from tests.server.servers import RunningServer, wait_until

LASTING = {"progress": [16] * 900, "delay": 0.05}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"max_tokens": 9},
    "/v1/chat/completions": {"max_tokens": 9},
    "/v1/responses": {"max_output_tokens": 9},
    "/v1/messages": {"max_tokens": 9},
}


def body_of(path: str, script: dict[str, Any], **fields: Any) -> dict[str, Any]:
    prompt = json.dumps(script)
    messages = [{"role": "user", "content": prompt}]
    name = {"/v1/completions": "prompt", "/v1/responses": "input"}.get(path, "messages")
    return {name: messages if name == "messages" else prompt, "stream": True, **ASKED[path], **fields}


def first_frame(server: RunningServer, path: str, body: dict[str, Any]) -> str:
    """The first frame of a stream whose client then leaves."""
    body |= {"model": server.model}
    with server.http.stream("POST", path, json=body) as reply:
        assert reply.status_code == 200, reply.read()
        text = ""
        for piece in reply.iter_text():
            text += piece
            if "\n\n" in text:
                break
    return text.split("\n\n")[0]


def test_a_comment_has_the_tokens_of_all_prompts_that_run() -> None:
    runs = {0: PromptRun(100, 16, 48, 1.0), 3: PromptRun(20, 0, 4, 1.0)}
    assert progress_comment(runs) == b": prompt 52/120\n\n"
    assert progress_comment({}) == KEEP_ALIVE
    assert prompt_progress(PromptRun(100, 16, 48, 1.2345)) == {
        "total": 100,
        "cache": 16,
        "processed": 48,
        "time_ms": 1234,
    }


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_a_stream_comments_on_how_far_its_prompt_is(server: RunningServer, path: str) -> None:
    frame = first_frame(server, path, body_of(path, LASTING))
    found = re.fullmatch(r": prompt (\d+)/(\d+)", frame)
    assert found, frame
    assert int(found[1]) == 16 < int(found[2])
    wait_until(lambda: server.served.client.num_open == 0)


def test_messages_have_pings_instead(server: RunningServer) -> None:
    frame = first_frame(server, "/v1/messages", body_of("/v1/messages", LASTING))
    assert frame == 'event: ping\ndata: {"type":"ping"}'
    wait_until(lambda: server.served.client.num_open == 0)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_who_asks_is_told_in_chunks_of_each_choice(server: RunningServer, path: str) -> None:
    script = {"progress": [16, 32, 48], "delay": 0.5, "say": "ab", "cached": [16]}
    body = body_of(path, script, return_progress=True, n=2)
    text = server.http.post(path, json=body).text
    kind: TypeAdapter[Any] = TypeAdapter(Completion if path == "/v1/completions" else ChatCompletionChunk)
    chunks = list(chunks_of(text, kind))
    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert {chunk["choices"][0]["index"] for chunk in told} == {0, 1}
    assert told == chunks[: len(told)], "they come first"
    seen = [chunk["prompt_progress"] for chunk in told if chunk["choices"][0]["index"] == 0]
    assert {progress["processed"] for progress in seen} <= {16, 32, 48}
    assert [progress["processed"] for progress in seen] == sorted(progress["processed"] for progress in seen)
    assert {progress["cache"] for progress in seen} == {16}
    assert all(progress["total"] > 48 and progress["time_ms"] >= 0 for progress in seen)
    assert ": prompt" not in text
    said: dict[int, str] = {}
    for choice in (chunk["choices"][0] for chunk in chunks):
        piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        said[choice["index"]] = said.get(choice["index"], "") + piece
    assert said == {0: "ab", 1: "ab"}


def chunks_of(text: str, kind: TypeAdapter[Any]) -> Iterator[Any]:
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == "data: [DONE]"
    for frame in frames:
        yield kind.validate_python(json.loads(frame.removeprefix("data: ")))


@pytest.mark.parametrize("asks", [False, True])
def test_a_plain_reply_and_a_quick_stream_are_as_ever(server: RunningServer, asks: bool) -> None:
    script = {"progress": [16, 32], "say": "ab"}
    body = body_of("/v1/completions", script, return_progress=asks)
    assert server.post(**body | {"stream": False}).json()["choices"][0]["text"] == "ab"
    assert "prompt" not in server.post(**body).text


def test_a_client_that_leaves_while_its_prompt_runs_frees_it(server: RunningServer) -> None:
    before = server.metric("gander_requests_total")
    path = "/v1/completions"
    body = body_of(path, LASTING) | {"model": server.model}
    with server.http.stream("POST", path, json=body) as reply:
        pieces = reply.iter_text()  # kept: dropping it would close the connection
        found = re.match(r": prompt (\d+)/(\d+)", next(pieces))
        assert found
        assert server.metric("gander_prompt_tokens_remaining") == int(found[2]) - int(found[1])
    wait_until(lambda: server.served.client.num_open == 0)
    assert server.metric("gander_prompt_tokens_remaining") == 0
    assert server.metric("gander_requests_total") == before + 1
