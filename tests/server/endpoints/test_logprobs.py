"""Log probabilities: one for each token that was generated, whatever ended the reply."""

import json
from typing import Any

import pytest

from tests.server.endpoints.test_chat import events_of
from tests.server.endpoints.test_completions import read_stream
from tests.server.servers import RunningServer

ENDINGS: list[tuple[dict[str, Any], str, list[str]]] = [
    ({"say": "ab"}, "ab", ["a", "b", "<|end|>"]),
    ({"say": ""}, "", ["<|end|>"]),
    ({"say": "abXYc"}, "ab", ["a", "b", "X", "Y"]),
    ({"say": "abcdefgh"}, "abcdefg", list("abcdefg")),
]


@pytest.mark.parametrize("per_step", [1, 2, 20])
@pytest.mark.parametrize(("script", "text", "tokens"), ENDINGS)
def test_there_is_one_for_each_generated_token(
    server: RunningServer, script: dict[str, Any], text: str, tokens: list[str], per_step: int
) -> None:
    prompt = json.dumps(script | {"per_step": per_step})
    body: dict[str, Any] = {"stop": ["XY"], "max_tokens": 7}
    plain = server.post(prompt=prompt, logprobs=1, **body).json()
    choice = plain["choices"][0]
    assert (choice["text"], choice["logprobs"]["tokens"]) == (text, tokens)
    assert plain["usage"]["completion_tokens"] == len(tokens)
    assert choice["logprobs"]["text_offset"] == list(range(len(tokens)))
    events = read_stream(server, prompt=prompt, logprobs=1, **body)
    assert [token for event in events for token in event["choices"][0]["logprobs"]["tokens"]] == tokens
    chat = server.chat(prompt, logprobs=True, **body).json()["choices"][0]
    assert [token["token"] for token in chat["logprobs"]["content"]] == tokens
    pieces = [
        event["choices"][0]["logprobs"] for event in events_of(server.chat(prompt, logprobs=True, stream=True, **body))
    ]
    assert [token for piece in pieces if piece for token in piece["content"]] == chat["logprobs"]["content"]


def test_a_continuation_is_scored_to_its_last_token_where_an_end_token_follows(server: RunningServer) -> None:
    """As evaluation harnesses do it: echo a text, generate one token, drop the last entry."""
    text = json.dumps({"say": ""})
    reply = server.post(prompt=text, echo=True, logprobs=1, max_tokens=1, temperature=0).json()
    logprobs = reply["choices"][0]["logprobs"]
    assert reply["usage"]["completion_tokens"] == 1
    assert logprobs["tokens"] == [*text, "<|end|>"]
    assert logprobs["token_logprobs"][-2] == -ord("}") / 100


@pytest.mark.parametrize("per_step", [1, 20])
def test_a_response_has_the_same_plain_and_streamed(server: RunningServer, per_step: int) -> None:
    body: dict[str, Any] = {"input": json.dumps({"say": "ab", "per_step": per_step}), "top_logprobs": 0}
    plain = server.http.post("/v1/responses", json=body).json()["output"][0]["content"][0]["logprobs"]
    assert [token["token"] for token in plain] == ["a", "b", "<|end|>"]
    streamed = server.http.post("/v1/responses", json=body | {"stream": True}).text
    last = json.loads(streamed.rstrip().rpartition("data: ")[2])
    assert last["response"]["output"][0]["content"][0]["logprobs"] == plain


NAMED = "a<|end|>b"
IDS = [97, 256, 98]
ECHOES: list[tuple[dict[str, Any], str, list[int]]] = [
    ({"prompt": NAMED}, NAMED, [0, 1, 8]),
    ({"prompt": NAMED, "parse_special": False}, NAMED, [*range(9)]),
    ({"prompt": IDS}, "ab", [0, 1, 1]),
    ({"prompt": IDS, "skip_special_tokens": False}, NAMED, [0, 1, 8]),
    ({"prompt": f"x{NAMED}", "truncate_prompt_tokens": 3}, "ab", [0, 1, 1]),
    ({"prompt": f"x{NAMED}", "truncate_prompt_tokens": 3, "skip_special_tokens": False}, NAMED, [0, 1, 8]),
]


@pytest.mark.parametrize(("asked", "text", "offsets"), ECHOES, ids=str)
def test_an_echoed_prompt_shows_special_tokens_where_its_text_does(
    server: RunningServer, asked: dict[str, Any], text: str, offsets: list[int]
) -> None:
    choice = server.post(echo=True, logprobs=1, max_tokens=2, **asked).json()["choices"][0]
    assert choice["text"][:-2] == text
    assert choice["logprobs"]["text_offset"] == [*offsets, len(text), len(text) + 1]


@pytest.mark.parametrize(("logprobs", "prompt_logprobs"), [(1, 3), (3, 1), (0, 2)])
def test_prompts_are_scored_twice_over_each_with_as_many_tokens_as_were_asked_for(
    server: RunningServer, logprobs: int, prompt_logprobs: int
) -> None:
    body = {"prompt": "ab", "echo": True, "max_tokens": 1, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    choice = server.post(**body).json()["choices"][0]
    assert [len(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [logprobs + 1] * 2, (
        "the token itself as well"
    )
    assert [len(top) for top in choice["prompt_logprobs"][1:]] == [prompt_logprobs + 1]
