"""Responses through the real openai client, in front of the scripted worker."""

import json
from pathlib import Path
from typing import Any

import pytest
from openai import APIError
from pydantic import TypeAdapter

from server.config import ServerSettings
from server.endpoints.responses.route import NAMES
from server.schemas.response_replies import Response
from tests.server.servers import RunningServer, make_model_folder, running_server

TOOL: Any = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}, "strict": True}

CLOSE: Any = {"type": "function", "name": "close", "parameters": {"type": "object", "properties": {}}}
SPACE: Any = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [CLOSE]}
CUSTOM: Any = {"type": "custom", "name": "patch", "description": "Changes files."}
UNSUPPORTED = "unsupported_parameter"
MISSING = "missing_required_parameter"


def script(**fields: Any) -> str:
    return json.dumps(fields)


def test_streamed_and_plain_responses_are_the_same(server: RunningServer) -> None:
    client = server.client()
    arguments: dict[str, Any] = {"model": server.model, "input": "hello", "max_output_tokens": 20}
    arguments["extra_body"] = {"seed": 5}
    plain = client.responses.create(**arguments)
    events = list(client.responses.create(**arguments, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == plain.output_text
    assert len(text) == 20
    last = events[-1].response  # type: ignore[union-attr]
    assert (last.status, last.output_text, last.usage) == (plain.status, plain.output_text, plain.usage)
    assert plain.status == "incomplete"
    assert plain.incomplete_details is not None
    assert plain.incomplete_details.reason == "max_output_tokens"
    assert plain.usage is not None
    assert (plain.usage.output_tokens, plain.usage.input_tokens) == (20, len("[user]\nhello\n[assistant]\n"))


def test_the_clients_stream_helper_reads_it(server: RunningServer) -> None:
    with server.client().responses.stream(model=server.model, input=script(say="done")) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "done"
    assert final.status == "completed"


def test_a_reply_has_the_declared_shape(server: RunningServer) -> None:
    fields = {"input": "a", "max_output_tokens": 4, "top_logprobs": 1, "speculation": {"report": True}}
    reply = server.http.post("/v1/responses", json=fields).json()
    assert TypeAdapter(Response).validate_python(reply) == reply
    assert [len(token["top_logprobs"]) for token in reply["output"][0]["content"][0]["logprobs"]] == [1] * 4


def test_calls_and_their_results_are_items(server: RunningServer) -> None:
    client = server.client()
    say = 'so: <tool_call>{"name": "time", "arguments": {"a": 1}}</tool_call>'
    arguments: dict[str, Any] = {"model": server.model, "tools": [TOOL], "input": script(say=say, per_step=5)}
    plain = client.responses.create(**arguments)
    assert [item.type for item in plain.output] == ["message", "function_call"]
    call: Any = plain.output[1]
    assert (call.name, call.arguments) == ("time", '{"a": 1}')
    with client.responses.stream(**arguments) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        final: Any = stream.get_final_response()
    assert "".join(pieces) == final.output[1].arguments == call.arguments
    follow: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "when?"}]},
        *[item.model_dump(exclude_none=True) for item in plain.output],
        {"type": "function_call_output", "call_id": call.call_id, "output": script(tell=True)},
    ]
    told = client.responses.create(model=server.model, input=follow, instructions="be brief")
    text = bytes(json.loads(told.output_text)["prompt"]).decode()
    assert text.startswith("[system]\nbe brief\n[user]\nwhen?\n[assistant]\nso:\n<tool_call>")
    assert text.count("[assistant]") == 2


def test_a_format_and_a_forced_call_become_grammars(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {}}
    form = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    body = {"input": script(tell=True, per_step=200), "text": form}
    reply = server.http.post("/v1/responses", json=body).json()
    told = json.loads(reply["output"][0]["content"][0]["text"])
    assert json.loads(told["sampling"]["grammar"]["text"]) == schema
    assert reply["text"]["format"]["schema"] == schema
    call = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    body = {"input": script(say=call), "tools": [TOOL], "tool_choice": {"type": "function", "name": "time"}}
    reply = server.http.post("/v1/responses", json=body).json()
    assert [(item["type"], item["name"]) for item in reply["output"]] == [("function_call", "time")]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "x"}, "conversation", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"truncation": "always"}, "truncation", "invalid_value"),
        ({"truncation": "auto", "input": "x" * 5000}, "input", "context_length_exceeded"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0.type", "invalid_value"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id", "missing_required_parameter"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input.0.content", "unsupported_content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content", MISSING),
        ({"input": [{"type": "web_search_call", "action": {}}]}, "input.0.type", "invalid_value"),
        ({"tools": [{"type": "retrieval", "top_k": 1}]}, "tools.0.type", "invalid_value"),
        ({"tools": [{"top_k": 1}]}, "tools.0.type", "missing_required_parameter"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools.0.name", "invalid_value"),
        ({"tools": [{"type": "function", "name": "a", "top_k": 1}]}, "tools.0.top_k", "unknown_parameter"),
        ({"tools": [SPACE | {"tools": [{"type": "mcp"}]}]}, "tools.0.tools.0.type", "invalid_value"),
        ({"tools": [SPACE, TOOL | {"name": "agents.close"}]}, "tools", "invalid_value"),
        ({"tools": [SPACE | {"name": f"s{n}", "tools": [CLOSE] * 1} for n in range(129)]}, "tools", "invalid_value"),
        ({"tools": [CUSTOM | {"format": {"type": "grammar"}}]}, "tools.0.format.syntax", "invalid_value"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice", UNSUPPORTED),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [SPACE], "tool_choice": {"type": "function", "name": "open"}}, "tool_choice", "invalid_value"),
        ({"include": ["thoughts"]}, "include.0", "invalid_value"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"input": "\ud800"}, "input", "invalid_unicode"),
        ({"input": [{"type": "reasoning", "content": "\ud800"}]}, "input", "invalid_unicode"),
        ({"metadata": {"\ud800": "a"}}, "metadata", "invalid_unicode"),
        ({"tools": [TOOL | {"description": "\ud800"}], "tool_choice": "none"}, "tools", "invalid_unicode"),
        ({"tools": [TOOL | {"parameters": {"a": ["\ud800"]}}], "tool_choice": "none"}, "tools", "invalid_unicode"),
        ({"tools": [TOOL | {"parameters": {"a": float("nan")}}], "stream": True}, "tools", "invalid_value"),
        ({"text": {"format": {"type": "text", "description": "\ud800"}}}, "text", "invalid_unicode"),
        ({"input": "x" * 5000}, "input", "context_length_exceeded"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "invalid_value"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_field_is_named(server: RunningServer, fields: dict[str, Any], param: str, code: str) -> None:
    content = json.dumps({"input": "hi"} | fields).encode()
    response = server.http.post("/v1/responses", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (param, code), error
    assert error["message"].partition(" ")[0].rstrip(":") not in NAMES, "the name that chat has for it"


def test_fields_that_change_no_answer_are_accepted(server: RunningServer) -> None:
    reply = server.http.post(
        "/v1/responses",
        json={
            "input": script(say="a"),
            "store": True,
            "truncation": "auto",
            "background": False,
            "metadata": {"a": "b"},
            "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
            "reasoning": {"summary": "auto"},
            "text": {"verbosity": "low"},
            "client_metadata": {"thread_id": "1", "turn_id": "2"},
            "prompt_cache_key": "1",
            "prompt_cache_retention": "24h",
            "safety_identifier": "a",
            "service_tier": "auto",
            "stream_options": {"include_obfuscation": True},
            "previous_response_id": None,
        },
    )
    assert reply.status_code == 200, reply.text
    assert (reply.json()["metadata"], reply.json()["store"]) == ({"a": "b"}, True)
    assert reply.json()["truncation"] == "auto"


def test_an_error_inside_a_stream_is_told_in_the_forms_clients_know(server: RunningServer, tmp_path: Path) -> None:
    client = server.client()
    with pytest.raises(APIError):
        client.responses.create(model=server.model, input=script(fail="x"), stream=True)
    body = {"input": script(say="ab" * 30, per_step=1, delay=0.02, crash_after=9), "stream": True}
    folder = make_model_folder(tmp_path / "toy")
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as fragile:
        reply = fragile.http.post("/v1/responses", json=body)
    assert "event: error\n" in reply.text
    assert "event: response.failed\n" in reply.text
