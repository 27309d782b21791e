"""With --coalesce-ms streams say the same, in chunks whose times and lengths tell nothing of the tokens in them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from server.config import ServerSettings
from server.http.sse import PIECE_BYTES, padded
from tests.server.servers import RunningServer, make_model_folder, reply_of, running_server

EVERY = 0.1  # seconds
CHAT = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    with running_server(ServerSettings(model=str(folder), drain_seconds=2, coalesce_ms=EVERY * 1e3)) as server:
        yield server


def writes_of(server: RunningServer, path: str, body: dict[str, Any]) -> list[bytes]:
    """What was read at a time, which is more than one write where the reader was held up: whole pieces in any case."""
    with server.http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        writes = [piece for piece in response.iter_raw() if piece]
    assert all(len(write) % PIECE_BYTES == 0 for write in writes)
    return writes


def script(**fields: Any) -> str:
    return json.dumps(fields)


def test_a_chunk_is_a_whole_number_of_pieces_and_parses_as_before() -> None:
    for num_bytes in (0, 1, 500, PIECE_BYTES - 5, PIECE_BYTES - 4, PIECE_BYTES - 3, PIECE_BYTES, 3000):
        frames = b"x" * num_bytes
        whole = padded(frames)
        assert len(whole) % PIECE_BYTES == 0
        assert len(whole) - num_bytes < PIECE_BYTES + 4
        comment = whole.removesuffix(frames)
        assert comment.startswith(b": ")
        assert comment.endswith(b"\n\n")
        assert b"\n" not in comment[:-2]


@pytest.mark.parametrize("per_step", [1, 5])
def test_streams_of_one_length_look_alike_however_many_tokens_a_step_gives(even: RunningServer, per_step: int) -> None:
    steps = 40 // per_step
    body = {"prompt": script(say="abcde" * 8, per_step=per_step, delay=0.8 / steps), "max_tokens": 40}
    started = time.monotonic()
    writes = writes_of(even, "/v1/completions", body)
    seconds = time.monotonic() - started
    text = b"".join(writes).decode()
    assert len(text) <= (seconds / EVERY + 3) * PIECE_BYTES, "tokens are sent as they come"
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "abcde" * 8
    assert len(chunks) < 40 // per_step + 5
    assert text.endswith("data: [DONE]\n\n")


def test_a_silent_model_is_a_chunk_like_the_others(even: RunningServer) -> None:
    body = {"prompt": script(say="ab", per_step=1, delay=0.35), "max_tokens": 2}
    writes = writes_of(even, "/v1/completions", body)
    assert any(not line.startswith(b"data:") for line in writes)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 20}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 20}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 20, "model": "toy"}),
    ],
)
def test_every_endpoint_streams_whole_pieces(even: RunningServer, path: str, body: dict[str, Any]) -> None:
    writes = writes_of(even, path, body)
    assert any(b"data: " in write for write in writes)


def test_replies_are_what_they_are_without_it(even: RunningServer, server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": script(say="the same"), "max_tokens": 8, "logprobs": 1, "n": 2}
    for streamed in (False, True):
        replies = [reply_of(each.post(**body, stream=streamed)) for each in (even, server)]
        assert replies[0] == replies[1]


def test_an_error_after_the_first_byte_is_an_event_of_whole_pieces(even: RunningServer) -> None:
    body = {"prompt": script(per_step=1, delay=0.05), "max_tokens": 3000, "timeout": 2}
    writes = writes_of(even, "/v1/completions", body)
    assert b'"code":"timeout' in b"".join(writes)
