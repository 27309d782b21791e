"""What clients send back of replies as history, and fields of newer clients that ask for nothing here."""

import json
from typing import Any

import pytest
from openai import pydantic_function_tool
from openai.lib._parsing import type_to_response_format_param
from pydantic import BaseModel, TypeAdapter

from server.schemas.anthropic_replies import MessageErrorReply
from tests.server.servers import RunningServer


class Weather(BaseModel):
    city: str


USER: Any = {"role": "user", "content": "hi"}
TELL: Any = {"role": "user", "content": json.dumps({"tell": ["prompt"], "per_step": 900})}
CALL: Any = {"id": "c1", "type": "function", "function": {"name": "Weather", "arguments": '{"city": "Oslo"}'}}
WRITTEN = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def prompt_of(server: RunningServer, path: str, **body: Any) -> str:
    """The prompt that the worker got, which the reply tells."""
    response = server.http.post(
        path, json={"max_tokens" if "responses" not in path else "max_output_tokens": 3000} | body
    )
    assert response.status_code == 200, response.text
    reply = response.json()
    if "choices" in reply:
        text = reply["choices"][0]["message"]["content"]
    else:
        text = (reply["content"] if "content" in reply else reply["output"][0]["content"])[0]["text"]
    return bytes(json.loads(text)["prompt"]).decode()


# Chat


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_openai_clients_parsed_message_is_history(server: RunningServer) -> None:
    client = server.client()
    say: Any = [{"role": "user", "content": json.dumps({"say": '{"city": "Oslo"}'})}]
    parsed = client.chat.completions.parse(model=server.model, messages=say, response_format=Weather)
    assert parsed.choices[0].message.parsed == Weather(city="Oslo")
    message: Any = parsed.choices[0].message
    for sent in (message, message.model_dump(), message.to_dict()):
        told = client.chat.completions.create(model=server.model, messages=[USER, sent, TELL], max_tokens=3000)
        text = bytes(json.loads(told.choices[0].message.content or "")["prompt"]).decode()
        assert '[assistant]\n{"city": "Oslo"}\n[user]' in text


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_openai_clients_parsed_call_is_history(server: RunningServer) -> None:
    client, tools = server.client(), [pydantic_function_tool(Weather)]
    say: Any = [{"role": "user", "content": json.dumps({"say": f"so: {WRITTEN}"})}]
    parsed = client.chat.completions.parse(model=server.model, messages=say, tools=tools)
    message: Any = parsed.choices[0].message
    assert message.tool_calls[0].function.parsed_arguments == Weather(city="Oslo")
    result: Any = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "12"}
    for sent in (message, message.model_dump(), message.to_dict()):
        messages: Any = [USER, sent, result, TELL]
        told = client.chat.completions.create(model=server.model, messages=messages, max_tokens=3000)
        text = bytes(json.loads(told.choices[0].message.content or "")["prompt"]).decode()
        assert f"[assistant]\nso:\n{WRITTEN}\n[tool]\n12\n" in text


NULLS: Any = {"refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": None}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ({"content": "a", **NULLS}, "a"),
        ({"content": "a", "annotations": [], "parsed": {"city": "x"}, "reasoning_content": None}, "a"),
        ({"content": "a", "tool_calls": []}, "a"),
        ({**NULLS, "content": None, "refusal": "I cannot."}, "I cannot."),
        ({"content": [{"type": "refusal", "refusal": "I cannot."}]}, "I cannot."),
        ({"content": [{"type": "text", "text": "a", "annotations": None}]}, "a"),
        ({"content": [], **NULLS}, ""),
        ({"content": None, "reasoning_content": "hm"}, ""),
        ({"content": None, "reasoning": "hm"}, ""),
        ({"content": None, "thinking": "hm"}, ""),
        ({**NULLS, "content": None, "tool_calls": [CALL]}, WRITTEN),
        ({"content": [], "tool_calls": [CALL | {"index": 0}]}, WRITTEN),
    ],
)
def test_an_earlier_message_of_the_assistant(server: RunningServer, message: dict[str, Any], shown: str) -> None:
    messages = [USER, {"role": "assistant"} | message, TELL]
    text = prompt_of(server, "/v1/chat/completions", messages=messages)
    assert f"[assistant]\n{shown}\n[user]\n" in text


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant"},
        {"role": "user", "content": None},
        {"role": "assistant", "content": "a", "audio": {"id": "x"}},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": ""}},
        {"role": "assistant", "content": [{"type": "refusal"}]},
    ],
)
def test_an_earlier_message_that_says_nothing_is_refused(server: RunningServer, message: dict[str, Any]) -> None:
    response = server.http.post("/v1/chat/completions", json={"messages": [USER, message]})
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("messages.1")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_what_a_template_is_given_anyway_is_no_option_of_it(server: RunningServer, path: str, name: str) -> None:
    body = {"messages": [USER], "chat_template_kwargs": {name: []}}
    error = server.http.post(path, json=body).json()["error"]
    assert (error["param"], name in error["message"]) == (f"chat_template_kwargs.{name}", True)


# Responses


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_the_openai_clients_parsed_response_is_input(server: RunningServer) -> None:
    client = server.client()
    parsed = client.responses.parse(
        model=server.model, input=json.dumps({"say": '{"city": "Oslo"}'}), text_format=Weather
    )
    assert parsed.output_parsed == Weather(city="Oslo")
    dumped = [item.model_dump() for item in parsed.output]
    for output in (parsed.output, dumped, [item.to_dict() for item in parsed.output]):
        sent: Any = [{"role": "user", "content": "hi"}, *output, TELL]
        told = client.responses.create(model=server.model, input=sent)
        assert '[assistant]\n{"city": "Oslo"}\n' in bytes(json.loads(told.output_text)["prompt"]).decode()


@pytest.mark.parametrize(
    ("items", "shown"),
    [
        ([{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}], ""),
        ([{"type": "message", "role": "assistant", "content": [], "id": "", "status": "completed"}], ""),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "phase": None}], "No."),
        (
            [
                {
                    "type": "function_call",
                    "id": "fc_1",
                    "call_id": "c1",
                    "name": "Weather",
                    "arguments": '{"city": "Oslo"}',
                    "parsed_arguments": {"city": "Oslo"},
                    "caller": {"type": "direct"},
                    "async_": None,
                    "async": False,
                    "namespace": None,
                    "created_by": "x",
                    "status": "completed",
                }
            ],
            WRITTEN,
        ),
    ],
)
def test_an_earlier_item(server: RunningServer, items: list[Any], shown: str) -> None:
    assert f"[assistant]\n{shown}\n[user]\n" in prompt_of(server, "/v1/responses", input=[USER, *items, TELL])


def test_a_thought_alone_is_an_empty_message_or_nothing(server: RunningServer) -> None:
    tool = {"type": "function", "name": "f", "parameters": {}}
    thought: Any = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "a"}],
    }
    empty = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a"}], "content": None}
    for more in ({}, {"tools": [tool]}):
        for items, status in (
            ([thought], 200),
            ([thought, thought], 200),
            ([empty], 400),
            ([empty | {"content": []}], 400),
        ):
            response = server.http.post("/v1/responses", json={"input": items, "max_output_tokens": 1} | more)
            assert response.status_code == status, response.text
            if status == 400:
                error = response.json()["error"]
                assert (error["param"], error["code"]) == ("input", "empty_prompt")


# Messages


def message_of(server: RunningServer, **body: Any) -> Any:
    return server.http.post("/v1/messages", json={"max_tokens": 3000, "messages": [TELL]} | body)


def test_a_whole_message_is_history(server: RunningServer) -> None:
    reply = message_of(server, messages=[{"role": "user", "content": json.dumps({"say": "yes"})}]).json()
    as_dumped = reply | {"container": None, "stop_details": None, "diagnostics": None, "context_management": None}
    for sent in (reply, as_dumped, {"role": "assistant", "content": reply["content"]}):
        text = prompt_of(server, "/v1/messages", messages=[USER, sent, TELL])
        assert "[assistant]\nyes\n[user]" in text
    wrong = message_of(server, messages=[USER, reply | {"type": "batch"}, TELL])
    assert wrong.json()["error"]["param"] == "messages.1.type"


def test_blocks_as_the_client_dumps_them_are_history(server: RunningServer) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "so:", "citations": None},
        {
            "type": "tool_use",
            "id": "c1",
            "name": "Weather",
            "input": {"city": "Köln"},
            "caller": {"type": "direct"},
            "toolset_name": None,
        },
    ]
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [], "toolset_name": None}
    messages = [USER, {"role": "assistant", "content": blocks}, {"role": "user", "content": [result]}, TELL]
    text = prompt_of(server, "/v1/messages", messages=messages)
    assert 'so:\n<tool_call>\n{"name": "Weather", "arguments": {"city": "Köln"}}' in text
    assert "[tool]\n\n[user]" in text
    data = json.dumps({"max_tokens": 3000, "messages": messages}).replace("\\u00f6", "\\ud800")
    refused = server.http.post("/v1/messages", content=data, headers={"content-type": "application/json"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_unicode")


TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]


@pytest.mark.parametrize("tools", [{}, {"tools": TOOLS}])
@pytest.mark.parametrize("path", ["", "/count_tokens"])
@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": []}, {"role": "user", "content": []}]},
        {"messages": [{"role": "assistant", "content": []}, USER]},
        {"messages": [{"role": "system", "content": []}]},
        {"messages": [USER], "system": []},
        {"messages": [USER], "stop_sequences": []},
        {"messages": [USER], "context_management": {"edits": []}},
        {"messages": [USER, {"role": "assistant", "content": []}]},
        {"messages": [USER, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": []}]}]},
        {"messages": []},
    ],
)
def test_an_empty_list_is_an_empty_message_or_refused(
    server: RunningServer, path: str, body: dict[str, Any], tools: dict[str, Any]
) -> None:
    given = body | tools | ({} if path else {"max_tokens": 2})
    response = server.http.post(f"/v1/messages{path}", json=given)
    assert response.status_code == (200 if body["messages"] else 400), response.text


THOUGHT = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}]}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "1"}]}
THINKING, TOOL_USES, COMPACT = "clear_thinking_20251015", "clear_tool_uses_20250919", "compact_20260112"


@pytest.mark.parametrize(
    "edit",
    [
        {"type": THINKING, "keep": "all"},
        {"type": THINKING, "keep": {"type": "all"}},
        {"type": THINKING, "keep": {"type": "thinking_turns", "value": 2}},
        {"type": TOOL_USES},
        {"type": TOOL_USES, "keep": {"type": "tool_uses", "value": 4}, "trigger": {"type": "tool_uses", "value": 1}},
        {"type": TOOL_USES, "keep": {"type": "tool_uses", "value": 0}, "trigger": {"type": "tool_uses", "value": 4}},
        {
            "type": TOOL_USES,
            "keep": {"type": "tool_uses", "value": 1},
            "exclude_tools": ["f"],
            "clear_tool_inputs": True,
        },
        {"type": COMPACT},
        {"type": COMPACT, "trigger": {"type": "input_tokens", "value": 50_000}, "instructions": "be brief"},
    ],
)
@pytest.mark.parametrize("path", ["", "/count_tokens"])
def test_context_management_that_clears_nothing_is_accepted(server: RunningServer, edit: Any, path: str) -> None:
    messages = [USER, THOUGHT, USER, THOUGHT, USER, *[USE, RESULT] * 4, USER]
    body: dict[str, Any] = {"messages": messages, "context_management": {"edits": [edit]}}
    response = server.http.post(f"/v1/messages{path}", json=body if path else body | {"max_tokens": 2})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "edit",
    [
        {"type": THINKING},
        {"type": THINKING, "keep": {"type": "thinking_turns", "value": 1}},
        {"type": THINKING, "keep": "some"},
        {"type": TOOL_USES, "keep": {"type": "tool_uses", "value": 3}, "trigger": {"type": "tool_uses", "value": 3}},
        {"type": TOOL_USES, "trigger": {"type": "input_tokens", "value": 1}},
        {"type": TOOL_USES, "keep": {"type": ["x"], "value": 3}, "trigger": 5},
        {"type": COMPACT, "trigger": {"type": "input_tokens", "value": 10}},
        {"type": "clear_all"},
        {"keep": "all"},
    ],
)
@pytest.mark.parametrize("path", ["", "/count_tokens"])
def test_context_management_that_would_clear_is_refused(server: RunningServer, edit: Any, path: str) -> None:
    messages = [USER, THOUGHT, USER, THOUGHT, USER, *[USE, RESULT] * 4, USER]
    edits = [{"type": THINKING, "keep": "all"}, edit]
    body: dict[str, Any] = {"messages": messages, "context_management": {"edits": edits}}
    response = server.http.post(f"/v1/messages{path}", json=body if path else body | {"max_tokens": 2})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "context_management"), response.text
    assert error["code"] == "unsupported_parameter"


def test_a_thread_may_be_created_and_not_continued(server: RunningServer) -> None:
    for thread in (None, {"type": "create"}):
        assert "[user]" in prompt_of(server, "/v1/messages", messages=[TELL], thread=thread)
    for messages in ([TELL], [RESULT]):
        refused = message_of(server, messages=messages, thread={"type": "continue", "previous_message_id": "msg_1"})
        body = refused.json()
        assert refused.status_code == 404
        assert TypeAdapter(MessageErrorReply).validate_python(body) == body
        assert "send the whole" in body["error"]["message"]
        assert body["error"]["details"] == {"error_code": "thread_not_found"}, "its client sends the whole one then"
    wrong = message_of(server, thread={"type": "fork"}).json()["error"]
    assert (wrong["param"], "details" in wrong) == ("thread.type", False)


@pytest.mark.parametrize("say", ["", "a", "abcdefgh"])
def test_a_stream_begins_with_all_tokens_as_run(server: RunningServer, say: str) -> None:
    messages = [{"role": "user", "content": json.dumps({"say": say, "cached": [16]})}]
    text = message_of(server, messages=messages, stream=True).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    begin, end = (
        events[0]["message"]["usage"],
        next(event for event in events if event["type"] == "message_delta")["usage"],
    )
    assert (begin["cache_read_input_tokens"], end["cache_read_input_tokens"]) == (0, 16)
    assert begin["input_tokens"] == end["input_tokens"] + 16


def test_a_named_format_comes_back(server: RunningServer) -> None:
    form = type_to_response_format_param(Weather)
    assert isinstance(form, dict)
    schema = form["json_schema"]["schema"]  # type: ignore[typeddict-item]
    given = {"type": "json_schema", "name": "weather_1", "schema": schema, "strict": True, "description": "Of a city"}
    for text in ({"format": given}, {"format": given, "verbosity": "medium"}):
        reply = server.http.post("/v1/responses", json={"input": '{"say": "{}"}', "text": text}).json()
        assert reply["text"] == text
    bare = {name: given[name] for name in ("type", "schema", "strict")}
    reply = server.http.post("/v1/responses", json={"input": '{"say": "{}"}', "text": {"format": bare}}).json()
    assert reply["text"]["format"] == bare | {"name": "schema", "description": None}
