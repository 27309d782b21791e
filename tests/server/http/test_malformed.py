"""Two hundred and more malformed bodies: every answer is a 4xx with the error object, and the server lives on."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.servers import RunningServer

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2},
    "/v1/responses": {"input": "hi", "max_output_tokens": 2},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104]},
}
FIELDS = {
    "/v1/completions": ["prompt", "max_tokens", "temperature", "stop", "seed", "logit_bias", "stream_options", "echo"],
    "/v1/chat/completions": ["messages", "tools", "tool_choice", "response_format", "n", "logprobs", "prediction"],
    "/v1/responses": ["input", "tools", "text", "reasoning", "include", "max_output_tokens", "top_p"],
    "/tokenize": ["prompt", "add_special_tokens"],
    "/detokenize": ["tokens"],
}
WRONG_JSON = ['{"a": [[[{}]]]}', "[[[]]]", "1e400", "NaN", "-Infinity", "9" * 400, '"\\ud800"', "[null, true]"]
DEPTHS = (50, 900, 5000, 200_000)


def bodies() -> Iterator[tuple[str, bytes]]:
    for path, good in GOOD.items():
        text = json.dumps(good).encode()
        for field in FIELDS[path]:
            for value in WRONG_JSON:
                rest = {name: given for name, given in good.items() if name != field}
                opening = json.dumps(rest)[:-1] + (", " if rest else "")
                yield path, f'{opening}"{field}": {value}}}'.encode()
        for depth in DEPTHS:
            yield path, text[:-1] + b', "x": ' + b"[" * depth + b"]" * depth + b"}"
            yield path, b'{"a":' * depth + b"1" + b"}" * depth
        yield from ((path, body) for body in (b"", b"{", b"null", b"5", b'"x"', b"[]", b"\xff\xfe\x00", b"\x00"))
        yield path, text[:-1] + b', "\xff": 1}'
        yield path, text.replace(b"hi", b"\xc3\x28") + b"}"
        rng = random.Random(path)
        for _ in range(8):
            cut = bytearray(text)
            cut[rng.randrange(len(cut))] = rng.choice(b'{}[]",:\x01')
            yield path, bytes(cut) + rng.choice([b"{", b"]", b","])


def test_every_malformed_body_is_a_4xx_with_the_error_object(server: RunningServer) -> None:
    num_tried = 0
    for path, body in bodies():
        reply = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= reply.status_code < 500, (path, body[:200], reply.text)
        error = reply.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["code"], str), (path, body[:200])
        assert len(error["message"]) <= 500
        assert reply.headers["x-request-id"]
        num_tried += 1
    assert num_tried >= 200
    assert server.post(prompt="still there", max_tokens=2).status_code == 200


@pytest.mark.parametrize("path", sorted(GOOD))
def test_the_bodies_are_right_before_they_are_broken(server: RunningServer, path: str) -> None:
    assert server.http.post(path, json=GOOD[path]).status_code == 200
