"""Whatever a chat asks for, every method gives the same reply over HTTP; and a prediction saves forwards."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.servers import RunningServer, but_for_the_cache

METHODS = ("none", "spine", "stand", "dynamic")
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox and a boat."}]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
ASKED: dict[str, dict[str, Any]] = {
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1},
    "bias": {"logit_bias": {"300": -100, "310": 2.5}},
    "min_p": {"min_p": 0.1},
    "top_p": {"top_p": 0.9, "top_k": 30},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "stop": {"stop": [" the"], "min_tokens": 5},
    "grammar": {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}},
    "tools": {"tools": [WEATHER], "tool_choice": "required"},
    "n": {"n": 3},
    "prediction": {"prediction": {"type": "content", "content": "Once upon a time there was a fox named Tom."}},
}


def ask(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    response = server.http.post(path, json=body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ASKED)
def test_a_chat_gets_the_same_reply_whatever_drafts(real: RunningServer, name: str, temperature: float) -> None:
    replies, drafted = [], 0
    for method in METHODS:
        speculation = {"method": method, "max_nodes": 16, "report": True}
        body = {"messages": MESSAGES, "max_tokens": 40, "temperature": temperature, "seed": 7, **ASKED[name]}
        reply = ask(real, "/v1/chat/completions", **body, speculation=speculation)
        for choice in reply["choices"]:
            report = choice.pop("speculation")
            assert report["method"] == method
            drafted += report["accepted"]
            for call in choice["message"].get("tool_calls") or ():
                call.pop("id")
        replies.append((reply["choices"], but_for_the_cache(reply["usage"])))
    assert all(reply == replies[0] for reply in replies[1:])
    assert drafted > 0
    if name == "grammar":
        assert json.loads(replies[0][0][0]["message"]["content"]).keys() == {"name", "age"}
    if name == "tools":
        call = replies[0][0][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "weather"
        assert json.loads(call["arguments"])["city"] in ("Oslo", "Rome")


def test_the_file_before_an_edit_saves_most_forwards_and_a_useless_prediction_costs_none(real: RunningServer) -> None:
    prompt = "class Stack:\n"
    arguments: dict[str, Any] = {"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": True}

    def run(method: str, prediction: str | None) -> tuple[str, int, dict[str, int]]:
        extra = {} if prediction is None else {"prediction": {"type": "content", "content": prediction}}
        speculation = {"method": method, "max_nodes": 32, "report": True}
        reply = ask(real, "/v1/completions", **arguments, **extra, speculation=speculation)
        choice = reply["choices"][0]
        return choice["text"], choice["speculation"]["steps"], reply["usage"]["completion_tokens_details"]

    text, plain_steps, _ = run("none", None)
    edited = text.replace("self", "me")
    assert edited != text
    for method in ("auto", "spine", "dynamic"):
        drafted, steps, details = run(method, edited)
        assert drafted == text
        assert 3 * steps <= plain_steps
        assert details["accepted_prediction_tokens"] > details["rejected_prediction_tokens"]
        useless, steps, details = run(method, "Nobody knows what the moon is made of, said the king. " * 8)
        assert useless == text
        assert steps <= 1.05 * plain_steps
        assert details["accepted_prediction_tokens"] < details["rejected_prediction_tokens"]
