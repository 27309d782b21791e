"""Log probabilities: one for each token that was generated, whatever ended the reply."""

import json
from typing import Any

import pytest

from tests.server.endpoints.test_chat import events_of
from tests.server.endpoints.test_completions import read_stream
from tests.server.endpoints.test_tools import TIME
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
    for extra in ({"return_token_ids": True}, {"include_stop_str_in_output": True}):
        chat = server.chat(prompt, logprobs=True, **body, **extra).json()["choices"][0]
        assert [token["token"] for token in chat["logprobs"]["content"]] == tokens


def entries_of(server: RunningServer, prompt: str, **fields: Any) -> tuple[str, list[Any]]:
    """The content of a chat and its log probabilities, which are the same streamed."""
    choice = server.chat(prompt, logprobs=True, **fields).json()["choices"][0]
    chunks = [event["choices"][0] for event in events_of(server.chat(prompt, logprobs=True, stream=True, **fields))]
    entries = choice["logprobs"]["content"]
    assert [entry for chunk in chunks for entry in (chunk["logprobs"] or {"content": []})["content"]] == entries
    assert "".join(chunk["delta"].get("content") or "" for chunk in chunks) == choice["message"]["content"]
    assert all(chunk["delta"] or chunk["finish_reason"] for chunk in chunks), "no chunk has entries alone"
    return choice["message"]["content"], entries


@pytest.mark.parametrize("per_step", [1, 2, 20])
@pytest.mark.parametrize("say", ["ab", "", "abXYc", "abcdefgh", "aXbX\u20ac", "a b\nXY", "<tool_call>XY"])
@pytest.mark.parametrize("fields", [{}, {"tools": [TIME]}])
def test_those_of_a_chat_join_to_its_content(
    server: RunningServer, say: str, per_step: int, fields: dict[str, Any]
) -> None:
    prompt = json.dumps({"say": say, "per_step": per_step})
    content, entries = entries_of(server, prompt, stop=["XY"], max_tokens=20, **fields)
    assert content == say.partition("XY")[0]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == content
    if say.isascii():
        assert [entry["token"] for entry in entries] == list(content)


@pytest.mark.parametrize("per_step", [1, 2, 20])
def test_those_of_a_chat_leave_out_special_tokens_that_its_content_does(server: RunningServer, per_step: int) -> None:
    prompt = json.dumps({"say": "a", "per_step": per_step})
    fields = {"ignore_eos": True, "max_tokens": 4, "seed": 1}
    content, entries = entries_of(server, prompt, **fields)
    assert (len(content), [entry["token"] for entry in entries]) == (3, list(content))
    shown, entries = entries_of(server, prompt, skip_special_tokens=False, **fields)
    assert (shown, [entry["token"] for entry in entries]) == (f"a<|end|>{content[1:]}", ["a", "<|end|>", *content[1:]])


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
    assert [token["token"] for token in plain] == ["a", "b"]
    shown = server.http.post("/v1/responses", json=body | {"include_stop_str_in_output": True}).json()["output"][0]
    assert [token["token"] for token in shown["content"][0]["logprobs"]] == ["a", "b", "<|end|>"]
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
