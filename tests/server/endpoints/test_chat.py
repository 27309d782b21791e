"""Chat completions through the real openai client and through raw bytes, in front of the scripted worker."""

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from pydantic import TypeAdapter

from server.http.notices import NOTICE
from server.schemas.chat import ChatChoice, ChatCompletion, ChatCompletionChunk
from tests.server.servers import RunningServer

HELLO: Any = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]


def script(**fields: Any) -> str:
    return json.dumps(fields)


def events_of(response: httpx.Response) -> list[Any]:
    """The events of a stream, [DONE] checked and left out."""
    assert response.status_code == 200, response.text
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def read_stream(client: OpenAI, **arguments: Any) -> dict[str, Any]:
    """Text, reasons and usage of a streamed reply, by choice."""
    read: dict[str, Any] = {"texts": {}, "reasons": {}, "roles": [], "usage": None}
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(stream=True, stream_options=options, **arguments):
        read["usage"] = chunk.usage or read["usage"]
        for choice in chunk.choices:
            read["texts"][choice.index] = read["texts"].get(choice.index, "") + (choice.delta.content or "")
            if choice.delta.role:
                read["roles"].append(choice.index)
            if choice.finish_reason:
                assert choice.index not in read["reasons"]
                read["reasons"][choice.index] = choice.finish_reason
    return read


def test_plain_and_streamed_replies_have_the_same_text_usage_and_reason(server: RunningServer) -> None:
    client = server.client()
    arguments: dict[str, Any] = {
        "model": server.model,
        "messages": HELLO,
        "max_completion_tokens": 40,
        "seed": 7,
        "n": 3,
    }
    plain = client.chat.completions.create(**arguments)
    streamed = read_stream(client, **arguments)
    assert plain.usage is not None
    assert plain.usage.prompt_tokens == len("[system]\nbe kind\n[user]\nhello\n[assistant]\n")
    assert plain.usage.completion_tokens == 120
    assert streamed["texts"] == {choice.index: choice.message.content for choice in plain.choices}
    assert len(set(streamed["texts"].values())) == 3
    assert streamed["reasons"] == {0: "length", 1: "length", 2: "length"}
    assert streamed["usage"] == plain.usage
    assert sorted(streamed["roles"]) == [0, 1, 2]


def test_the_raw_bytes_of_a_stream_are_what_clients_parse(server: RunningServer) -> None:
    response = server.chat(script(say="ab€", per_step=2, delay=0.05), stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = events_of(response)
    shared = {name: events[0][name] for name in ("id", "created", "object", "model", "system_fingerprint")}
    assert shared["id"].startswith("chatcmpl-")
    assert shared["object"] == "chat.completion.chunk"

    def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {**shared, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]}

    assert events == [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "ab"}),
        chunk({"content": "€"}),
        chunk({}, "stop"),
    ]


def test_replies_and_chunks_have_the_declared_shape(server: RunningServer) -> None:
    fields: dict[str, Any] = {"max_tokens": 9, "logprobs": True, "top_logprobs": 2, "speculation": {"report": True}}
    reply = server.chat("a", **fields, prompt_logprobs=1).json()
    assert TypeAdapter(ChatCompletion).validate_python(reply, strict=True) == reply
    assert set(reply["choices"][0]) <= set(ChatChoice.__annotations__)
    for event in events_of(server.chat("a", **fields, stream=True, stream_options={"include_usage": True})):
        assert TypeAdapter(ChatCompletionChunk).validate_python(event, strict=True) == event


def test_without_a_limit_a_reply_has_all_the_room_there_is(server: RunningServer) -> None:
    reply = server.chat(script(per_step=500)).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["total_tokens"] == 4096


def test_content_may_come_in_parts_of_text(server: RunningServer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": script(say="two")}]
    reply = server.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": parts}]}).json()
    assert reply["choices"][0]["message"] == {"role": "assistant", "content": "two", "refusal": None}


def test_stop_strings_cut_and_are_not_shown(server: RunningServer) -> None:
    content = script(say="one two END three", per_step=4)
    reply = server.chat(content, stop=["zzz", "END", "ND t"], logprobs=True).json()
    choice = reply["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("one two ", "stop")
    assert "".join(token["token"] for token in choice["logprobs"]["content"]) == "one two "
    assert reply["usage"]["completion_tokens"] == len("one two END")


def test_log_probabilities_have_the_form_of_chat(server: RunningServer) -> None:
    content = script(say="a€", per_step=2, delay=0.02)
    logprobs = server.chat(content, logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]
    assert [token["bytes"] for token in logprobs["content"]] == [[97], [0xE2], [0x82], [0xAC]]
    assert logprobs["content"][0] == {
        "token": "a",
        "logprob": -0.97,
        "bytes": [97],
        "top_logprobs": [
            {"token": "\x00", "logprob": 0.0, "bytes": [0]},
            {"token": "\x01", "logprob": -0.01, "bytes": [1]},
        ],
    }
    assert logprobs["content"][1]["token"] == "bytes:\\xe2"
    streamed = events_of(server.chat(content, logprobs=True, top_logprobs=2, stream=True))
    pieces = [event["choices"][0]["logprobs"] for event in streamed]
    assert [token for piece in pieces if piece for token in piece["content"]] == logprobs["content"]
    assert server.chat(content).json()["choices"][0]["logprobs"] is None


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages.0.content",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content", "invalid_type"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.tool_call_id", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": "a", "x": 1}]}, "messages.0.x", "unknown_parameter"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "invalid_unicode"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "above_limit"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context_length_exceeded"),
        ({"audio": {}}, "audio", "unsupported_parameter"),
        ({"modalities": ["audio"]}, "modalities", "unsupported_parameter"),
        ({"functions": [{}]}, "functions", "unsupported_parameter"),
        ({"chat_template": "x"}, "chat_template", "unsupported_parameter"),
        ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "invalid_value"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type", "invalid_value"),
        ({"echo": True}, "echo", "unknown_parameter"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_field_is_named(server: RunningServer, fields: dict[str, Any], param: str, code: str) -> None:
    body = json.dumps({"messages": HELLO} | fields).encode()
    response = server.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error


def test_fields_that_change_no_answer_are_accepted(server: RunningServer) -> None:
    response = server.chat(
        "a",
        max_tokens=2,
        store=True,
        metadata={"a": "b"},
        service_tier="auto",
        user="someone",
        parallel_tool_calls=True,
        stream_options={"include_usage": True},
        modalities=["text"],
        safety_identifier="x",
        prompt_cache_key="y",
        functions=None,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
    )
    assert response.status_code == 200, response.text


def test_every_field_reaches_the_worker(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    reply = server.chat(
        script(tell=True, per_step=100),
        max_tokens=3000,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        min_p=0.1,
        seed=3,
        min_tokens=2,
        stop_token_ids=[255],
        presence_penalty=0.25,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        logit_bias={"5": 1, "6": -100},
        bad_words=["no"],
        allowed_token_ids=[1, 2],
        logprobs=True,
        top_logprobs=4,
        prompt_logprobs=3,
        response_format=form,
        prediction={"type": "content", "content": [{"type": "text", "text": "hij"}]},
        session_id="mine",
        cache_salt="mine alone, ½",
        speculation={"method": "spine", "max_nodes": 7, "max_depth": 3},
    ).json()
    told = json.loads(reply["choices"][0]["message"]["content"])
    assert json.loads(told["sampling"]["grammar"].pop("text")) == schema
    assert told["sampling"] == {
        "max_tokens": 3000,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 3,
        "min_tokens": 2,
        "stop_token_ids": [255],
        "ignore_eos": False,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 1.0, "6": -100.0},
        "bad_words": [[110, 111], [32, 110, 111]],
        "allowed_token_ids": [1, 2],
        "logprobs": 4,
        "prompt_logprobs": 3,
        "grammar": {"kind": "json_schema"},
    }
    assert (told["tenant"], told["session_id"], told["prediction"]) == ("", "mine", [104, 105, 106])
    assert told["cache_salt"] == "mine alone, ½"
    assert (told["speculation"]["method"], told["speculation"]["max_nodes"]) == ("spine", 7)
    details = reply["usage"]["completion_tokens_details"]
    assert (details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]) == (2, 1)
    assert len(reply["prompt_logprobs"]) == reply["usage"]["prompt_tokens"]
    assert reply["prompt_logprobs"][0] is None
    assert reply["prompt_logprobs"][1]["117"] == {"logprob": -1.17, "rank": 118, "decoded_token": "u"}


@pytest.mark.parametrize(
    ("fields", "kind", "text"),
    [
        ({"response_format": {"type": "json_object"}}, "json_object", ""),
        ({"guided_json": {"type": "null"}}, "json_schema", '{"type": "null"}'),
        ({"guided_json": '{"type": "null"}'}, "json_schema", '{"type": "null"}'),
        ({"guided_regex": "a+"}, "regex", "a+"),
        ({"guided_choice": ["a", "b"]}, "choice", '["a", "b"]'),
        ({"guided_grammar": "start: /a/"}, "lark", "start: /a/"),
        ({"structured_outputs": {"json": {"type": "null"}}}, "json_schema", '{"type": "null"}'),
        ({"structured_outputs": {"json_object": True}}, "json_object", ""),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice", '["a"]'),
        ({"structured_outputs": {"grammar": "start: /a/"}}, "lark", "start: /a/"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_every_way_to_ask_for_a_form_becomes_a_grammar(
    server: RunningServer, fields: dict[str, Any], kind: str, text: str
) -> None:
    for reply in (
        server.chat(script(tell=True), **fields).json()["choices"][0]["message"]["content"],
        server.post(prompt=script(tell=True), max_tokens=2000, **fields).json()["choices"][0]["text"],
    ):
        assert json.loads(reply)["sampling"]["grammar"] == {"kind": kind, "text": text}


def test_a_final_message_can_be_continued(server: RunningServer) -> None:
    messages = [*HELLO, {"role": "assistant", "content": script(tell=True)}]
    body = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    reply = server.http.post("/v1/chat/completions", json=body).json()
    told = json.loads(reply["choices"][0]["message"]["content"])
    text = "[system]\nbe kind\n[user]\nhello\n[assistant]\n" + script(tell=True)
    assert bytes(told["prompt"]).decode() == text


UNIQUE = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 3}


@pytest.mark.parametrize("stream", [False, True])
def test_who_is_not_strict_is_told_what_does_not_hold_the_model_and_whether_the_reply_fits(
    server: RunningServer, stream: bool
) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": UNIQUE}}
    loose = "The schema is not strict: #/uniqueItems cannot be enforced by a grammar, and does not hold the model."
    for say, fits in (("[1, 2]", True), ("[1, 1]", False), ("[1, ", False)):
        reply = server.chat(script(say=say), response_format=form, stream=stream)
        assert reply.status_code == 200, reply.text
        misfit = "" if fits or stream else " Choice 0 does not fit the schema."
        assert reply.headers[NOTICE] == loose + misfit
    form["json_schema"]["strict"] = True
    refused = server.chat("a", response_format=form)
    assert refused.json()["error"]["code"] == "invalid_schema"
    form["json_schema"]["schema"] = UNIQUE | {"uniqueItems": False}
    assert NOTICE not in server.chat("a", response_format=form).headers
