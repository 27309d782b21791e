"""Tools of /v1/responses beside plain functions: those in namespaces, custom ones, and those that OpenAI runs.

And thoughts, which agents send back with their calls.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from server.http.notices import NOTICE
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server

FIELDS: Any = {"type": "object", "properties": {"id": {"type": "string"}}}
CLOSE: Any = {"type": "function", "name": "close", "description": "Ends one.", "parameters": FIELDS, "strict": False}
OPEN: Any = CLOSE | {"name": "open", "description": "Begins one."}
TIME: Any = {"type": "function", "name": "time", "parameters": {"type": "object", "properties": {}}}
SPACE: Any = {"type": "namespace", "name": "agents", "description": "Other agents.", "tools": [CLOSE, OPEN]}
HOSTED: Any = [
    {"type": "web_search", "external_web_access": False, "search_context_size": "medium"},
    {"type": "mcp", "server_label": "a", "server_url": "https://a"},
    {"type": "tool_search", "execution": "client", "parameters": {}},
]


def asked(server: RunningServer, **body: Any) -> Any:
    return server.http.post("/v1/responses", json=body)


def events_of(response: Any) -> list[Any]:
    """The events of a stream, each with its type."""
    assert response.status_code == 200, response.text
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    return [json.loads(frame.partition("\ndata: ")[2]) for frame in frames]


def calls(*named: tuple[str, Any]) -> str:
    return "\n".join(f"<tool_call>{json.dumps({'name': n, 'arguments': a})}</tool_call>" for n, a in named)


def saying(text: str, per_step: int = 5) -> str:
    return json.dumps({"say": text, "per_step": per_step})


def prompt_of(server: RunningServer, items: list[Any] | None = None, **body: Any) -> str:
    """The prompt that the worker gets."""
    tell = {"role": "user", "content": json.dumps({"tell": ["prompt"], "per_step": 900})}
    reply = asked(server, input=[*(items or ()), tell], **body).json()
    return bytes(json.loads(reply["output"][0]["content"][0]["text"])["prompt"]).decode()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
def test_tools_that_the_provider_runs_are_not_offered_and_named(
    server: RunningServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    bodies: dict[str, Any] = {
        "/v1/responses": {"input": "a", "max_output_tokens": 2, "tools": [*HOSTED, TIME]},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 2,
            "tools": [*HOSTED, {"type": "function", "function": {"name": "time"}}],
        },
        "/v1/messages": {
            "messages": [{"role": "user", "content": "a"}],
            "max_tokens": 2,
            "tools": [
                {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
                {"type": "mcp_toolset", "mcp_server_name": "a"},
                {"name": "time", "input_schema": {"type": "object"}},
            ],
        },
    }
    kinds = {"/v1/messages": ("web_search_20250305", "mcp_toolset")}.get(path, ("web_search", "mcp", "tool_search"))
    told = [f"Tools of type {kind} are not offered to the model: this server cannot run them." for kind in kinds]
    for stream in (False, True):
        reply = server.http.post(path, json=bodies[path] | {"stream": stream})
        assert (reply.status_code, reply.headers[NOTICE]) == (200, " ".join(told)), reply.text
    for sentence in told if path != "/v1/responses" else ():  # which were logged for the chat's
        assert sum(sentence in record.getMessage() for record in caplog.records) <= 1
    offered = bodies[path] | {"tools": bodies[path]["tools"][-1:]}
    assert NOTICE not in server.http.post(path, json=offered).headers


def test_what_the_provider_runs_is_not_shown_to_the_model(server: RunningServer) -> None:
    assert "web_search" not in prompt_of(server, tools=HOSTED)
    assert prompt_of(server, tools=[*HOSTED, TIME]) == prompt_of(server, tools=[TIME])
    chosen = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "a"}, TIME]}
    assert prompt_of(server, tools=[*HOSTED, TIME, OPEN], tool_choice=chosen) == prompt_of(server, tools=[TIME])


def test_functions_of_a_namespace_are_shown_by_both_names(server: RunningServer) -> None:
    prompt = prompt_of(server, tools=[SPACE, TIME])
    names = [json.loads(line)["function"]["name"] for line in prompt.splitlines() if line.startswith('{"type"')]
    assert names == ["agents.close", "agents.open", "time"]
    assert prompt.count("Other agents.") == 1


@pytest.mark.parametrize("written", ["agents.close", "close"])
def test_a_call_in_a_namespace_has_name_and_namespace(server: RunningServer, written: str) -> None:
    body: Any = {"input": saying(calls((written, {"id": "7"}), ("time", {}))), "tools": [SPACE, TIME]}
    plain = asked(server, **body).json()
    first, second = plain["output"]
    assert (first["type"], first["name"], first["namespace"]) == ("function_call", "close", "agents")
    assert json.loads(first["arguments"]) == {"id": "7"}
    assert (second["name"], "namespace" in second) == ("time", False)
    events = events_of(asked(server, stream=True, **body))
    for kind in ("response.output_item.added", "response.output_item.done"):
        items = [event["item"] for event in events if event["type"] == kind]
        assert [(item["name"], item.get("namespace")) for item in items] == [("close", "agents"), ("time", None)]
    streamed = events[-1]["response"]["output"]
    told = ("type", "name", "namespace", "arguments")
    assert [[item.get(name) for name in told] for item in streamed] == [
        [item.get(name) for name in told] for item in plain["output"]
    ]


def test_an_earlier_call_in_a_namespace_is_shown_as_the_model_wrote_it(server: RunningServer) -> None:
    call: Any = {"type": "function_call", "call_id": "c1", "name": "close", "namespace": "agents"}
    call["arguments"] = '{"id": "7"}'
    parts = [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]
    output = {"type": "function_call_output", "call_id": "c1", "output": parts}
    prompt = prompt_of(server, [{"role": "user", "content": "end it"}, call, output], tools=[SPACE])
    assert '<tool_call>\n{"name": "agents.close", "arguments": {"id": "7"}}\n</tool_call>' in prompt
    assert "one\ntwo" in prompt


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "close", "namespace": "agents"},
        {"type": "function", "name": "close"},
        {"type": "function", "name": "agents.close"},
    ],
)
def test_a_function_of_a_namespace_may_be_forced(server: RunningServer, choice: Any) -> None:
    body = {"input": saying(calls(("agents.close", {}))), "tools": [SPACE, TIME], "tool_choice": choice}
    reply = asked(server, **body).json()
    assert reply["tool_choice"] == {"type": "function", "name": "close", "namespace": "agents"}
    assert [(item["name"], item["namespace"]) for item in reply["output"]] == [("close", "agents")]
    assert reply["tools"][0]["tools"][0] | CLOSE == reply["tools"][0]["tools"][0]


def test_a_thought_comes_back_in_its_encrypted_content(tmp_path: Path) -> None:
    thought = "{% if message.role == 'assistant' %}{{ message.reasoning_content }};{% endif %}"
    shown = CHAT_TEMPLATE.replace("{{ message.content", thought + "{{ message.content")
    folder = make_model_folder(tmp_path / "toy", shown)
    with running_server(ServerSettings(model=str(folder), reasoning_parser="think", drain_seconds=1)) as server:
        said = saying("<think>\nhm \u20ac\n</think>\n\nyes")
        assert "encrypted_content" not in asked(server, input=said).json()["output"][0]
        wanted = {"include": ["reasoning.encrypted_content"], "input": said}
        item, _ = asked(server, **wanted).json()["output"]
        events = events_of(asked(server, stream=True, **wanted))
        done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
        assert item["content"][0]["text"] == "hm \u20ac"
        assert done["encrypted_content"] == item["encrypted_content"] != ""
        answer = {"role": "assistant", "content": "yes"}
        for sent_back in (item, item | {"content": None}, item | {"encrypted_content": None}):
            assert "[assistant]\nhm \u20ac;yes\n" in prompt_of(server, [sent_back, answer])
        others = item | {"content": None, "encrypted_content": "gAAAAAB"}
        assert "[assistant]\n;yes\n" in prompt_of(server, [others, answer])


def test_compacting_is_refused_by_a_sentence(server: RunningServer) -> None:
    refused = server.http.post("/v1/responses/compact", json={"model": "toy", "input": "hi"})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (404, "unsupported_endpoint")
    assert "does not compact" in error["message"]
