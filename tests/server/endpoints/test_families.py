"""Calls and thoughts of every family over HTTP, streamed and plain: by chat, by responses and by messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from tests.server.endpoints.test_messages import assembled, events_of
from tests.server.parsing.family_replies import ARGUMENTS, CALLS, TOOLS
from tests.server.parsing.family_templates import TEMPLATES
from tests.server.servers import RunningServer, make_model_folder, running_server

FUNCTIONS: Any = [{"name": name, "parameters": schema} for name, schema in TOOLS.items()]
BOTH = [("weather", ARGUMENTS), ("now", {})]


@pytest.fixture(scope="module")
def taker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that takes templates from requests."""
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "any")
    with running_server(
        ServerSettings(model=str(folder), trust_request_chat_template=True, drain_seconds=2)
    ) as running:
        yield running


@pytest.mark.parametrize("family", sorted(CALLS))
def test_calls_by_chat(taker: RunningServer, family: str) -> None:
    client = taker.client()
    arguments: dict[str, Any] = {
        "model": taker.model,
        "messages": [{"role": "user", "content": json.dumps({"say": CALLS[family], "per_step": 5})}],
        "tools": [{"type": "function", "function": function} for function in FUNCTIONS],
        "extra_body": {"chat_template": TEMPLATES[family]},
    }
    plain = client.chat.completions.create(**arguments).choices[0]
    with client.chat.completions.stream(**arguments) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (plain, streamed):
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        calls = choice.message.tool_calls or []
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == BOTH


@pytest.fixture(scope="module", params=["qwen3_coder", "gpt_oss", "mistral_v11"])
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, RunningServer]]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / request.param, TEMPLATES[request.param])
    settings = ServerSettings(model=str(folder), reasoning_parser=THOUGHTS[request.param][0], drain_seconds=2)
    with running_server(settings) as running:
        yield request.param, running


# By family: who thinks so, a thought, and what comes before a call that follows it.
THOUGHTS = {
    "qwen3_coder": ("think", "<think>\nHm.\n</think>\n\n", ""),
    "gpt_oss": ("gpt_oss", "<|channel|>analysis<|message|>Hm.<|end|>", "<|start|>assistant"),
    "mistral_v11": ("mistral_think", "[THINK]Hm.[/THINK]", ""),
}


def said(name: str) -> str:
    _, thought, between = THOUGHTS[name]
    return json.dumps({"say": thought + between + CALLS[name], "per_step": 4})


def test_calls_by_responses(family: tuple[str, RunningServer]) -> None:
    name, server = family
    client = server.client()
    tools: Any = [{"type": "function", **function, "strict": False} for function in FUNCTIONS]
    plain = client.responses.create(model=server.model, input=said(name), tools=tools)
    with client.responses.stream(model=server.model, input=said(name), tools=tools) as stream:
        streamed = stream.get_final_response()
    for response in (plain, streamed):
        items = [item.model_dump() for item in response.output]
        assert [item["type"] for item in items] == ["reasoning", "function_call", "function_call"]
        assert items[0]["content"][0]["text"] == "Hm."
        assert [(item["name"], json.loads(item["arguments"])) for item in items[1:]] == BOTH


def test_calls_by_messages(family: tuple[str, RunningServer]) -> None:
    name, server = family
    body = {
        "model": server.model,
        "max_tokens": 1000,
        "messages": [{"role": "user", "content": said(name)}],
        "tools": [{"name": each, "input_schema": schema} for each, schema in TOOLS.items()],
    }
    plain = server.http.post("/v1/messages", json=body).json()
    streamed = assembled(events_of(server.http.post("/v1/messages", json=body | {"stream": True}).text))
    for message in (plain, streamed):
        blocks = message["content"]
        assert [block["type"] for block in blocks] == ["thinking", "tool_use", "tool_use"]
        assert blocks[0]["thinking"] == "Hm."
        assert [(block["name"], block["input"]) for block in blocks[1:]] == BOTH
        assert message["stop_reason"] == "tool_use"


def test_a_response_template_of_a_file_reads_the_replies(tmp_path: Path) -> None:
    folder = make_model_folder(
        tmp_path / "model", "{{ messages[0].content }}\n<|tools|>{{ tools | length }}<|assistant|>"
    )
    fields = {"content": {}, "tool_calls": {"open": "<call>", "close": "</call>", "repeats": True, "content": "json"}}
    (tmp_path / "own.json").write_text(json.dumps({"start_anchor": "<|assistant|>", "fields": fields}))
    settings = ServerSettings(model=str(folder), response_template=str(tmp_path / "own.json"), drain_seconds=2)
    with running_server(settings) as server:
        say = json.dumps({"say": 'Yes <call>{"name": "now", "arguments": {"at": "</call>"}}</call>', "per_step": 3})
        tools = [{"type": "function", "function": {"name": "now"}}]
        [choice] = server.chat(say, tools=tools).json()["choices"]
        refused = server.chat(say, tools=tools, tool_choice="required")
    assert choice["message"]["content"] == "Yes"
    [call] = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {"at": "</call>"})
    assert refused.status_code == 400
    assert "--tool-parser" in refused.json()["error"]["message"]
