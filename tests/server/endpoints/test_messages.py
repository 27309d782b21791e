"""Messages, Anthropic's API, over plain HTTP in front of the scripted worker: streamed and plain."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from server.config import ServerSettings
from server.schemas.anthropic_replies import MessageErrorReply, MessageEvent, MessageReply
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server

TOOL: Any = {
    "name": "weather",
    "description": "Of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "cache_control": {"type": "ephemeral"},
}
THINKING = CHAT_TEMPLATE + "{# <think></think> #}{% if enable_thinking is false %}<no>{% endif %}"

PING = 'event: ping\ndata: {"type":"ping"}'


def script(**fields: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": json.dumps(fields)}]


def post(server: RunningServer, path: str = "", **body: Any) -> Any:
    body = {"max_tokens": 400, **body} if not path else body
    response = server.http.post(f"/v1/messages{path}", json={"model": server.model} | body)
    assert response.status_code == 200, response.text
    return response


def events_of(text: str) -> list[dict[str, Any]]:
    events = []
    for frame in text.split("\n\n")[:-1]:
        if frame == PING:  # which keeps the connection alive
            continue
        kind, data = frame.split("\n")
        events.append(TypeAdapter(MessageEvent).validate_python(json.loads(data.removeprefix("data: "))))
        assert kind == f"event: {events[-1]['type']}"
    return events


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream's events come to, put together as Anthropic's client does."""
    assert [events[0]["type"], events[-2]["type"], events[-1]["type"]] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    message, arguments, is_open = events[0]["message"], "", False
    for event in events[1:-2]:
        content = message["content"]
        match event["type"]:
            case "content_block_start":
                assert (is_open, event["index"]) == (False, len(content))
                content.append(event["content_block"])
                is_open, arguments = True, ""
            case "content_block_delta":
                assert event["index"] == len(content) - 1
                fields = dict(event["delta"])
                kind = fields.pop("type")
                ((name, piece),) = fields.items()
                assert is_open
                assert kind == {"partial_json": "input_json"}.get(name, name) + "_delta"
                if name == "partial_json":
                    arguments += piece
                else:
                    content[-1][name] += piece
            case "content_block_stop":
                assert is_open
                is_open = False
                if content[-1]["type"] == "tool_use":
                    content[-1]["input"] = json.loads(arguments)
    assert not is_open
    return message | events[-2]["delta"] | {"usage": events[-2]["usage"]}


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    fresh = {"id": "", "signature": ""}
    blocks = [block | {name: "" for name in fresh if name in block} for block in message["content"]]
    return message | {"id": "", "content": blocks}


def both(server: RunningServer, **body: Any) -> dict[str, Any]:
    """The plain reply, which the streamed one must equal but for its random ids."""
    plain: dict[str, Any] = post(server, **body).json()
    assert TypeAdapter(MessageReply).validate_python(plain) == plain
    streamed = assembled(events_of(post(server, **body, stream=True).text))
    assert without_ids(streamed) == without_ids(plain)
    return plain


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "thinker", THINKING)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as running:
        yield running


def test_a_message_says_what_the_chat_says(server: RunningServer) -> None:
    said = {"role": "user", "content": "hello"}
    message = both(server, messages=[said], system="be brief", max_tokens=20, seed=5)
    messages = [{"role": "system", "content": "be brief"}, said]
    body = {"messages": messages, "max_tokens": 20, "seed": 5}
    reply = server.http.post("/v1/chat/completions", json=body).json()
    assert message["content"] == [{"type": "text", "text": reply["choices"][0]["message"]["content"]}]
    assert (message["type"], message["role"], message["stop_reason"]) == ("message", "assistant", "max_tokens")
    assert message["usage"]["output_tokens"] == reply["usage"]["completion_tokens"] == 20
    assert message["usage"]["input_tokens"] == reply["usage"]["prompt_tokens"]
    counted = post(server, "/count_tokens", messages=[said], system="be brief").json()
    assert counted == {"input_tokens": reply["usage"]["prompt_tokens"]}


def test_a_stop_sequence_is_named_and_the_rooms_end_is_no_error(server: RunningServer) -> None:
    message = both(server, messages=script(say="one two three"), stop_sequences=["x", " t"])
    assert message["content"] == [{"type": "text", "text": "one"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " t")
    message = both(server, messages=script(say="one two"))
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    message = both(server, messages=[{"role": "user", "content": "x" * 4000}], max_tokens=64000, seed=1)
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert message["usage"]["input_tokens"] + message["usage"]["output_tokens"] == 4096


PROMPT_LEN = len('[user]\n{"say": "a", "cached": [17]}\n[assistant]\n')


def test_tokens_found_in_the_cache_are_not_input_tokens(server: RunningServer) -> None:
    usage = both(server, messages=script(say="a", cached=[17]))["usage"]
    assert usage["cache_read_input_tokens"] == 17
    assert usage["input_tokens"] + 17 == PROMPT_LEN
    assert usage["cache_creation_input_tokens"] == 0


SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
EPHEMERAL = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


@pytest.mark.parametrize("place", ["body", "system", "tools", "messages"])
def test_what_is_run_of_a_marked_prompt_is_created_in_the_cache(server: RunningServer, place: str) -> None:
    asked = {"role": "user", "content": [{"type": "text", "text": script(say="a", cached=[17])[0]["content"]}]}
    body: dict[str, Any] = {"messages": [asked]}
    match place:
        case "body":
            body |= EPHEMERAL
        case "system":
            body["system"] = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"} | EPHEMERAL]
        case "tools":
            body["tools"] = [TOOL]
        case "messages":
            asked["content"] = [asked["content"][0] | EPHEMERAL]  # type: ignore[index]
    usage = both(server, **body)["usage"]
    counted = post(server, "/count_tokens", **body).json()["input_tokens"]
    assert (usage["cache_read_input_tokens"], usage["input_tokens"]) == (17, 0)
    assert usage["cache_creation_input_tokens"] == counted - 17 >= PROMPT_LEN - 17
    begun = events_of(post(server, **body, stream=True).text)[0]["message"]["usage"]
    assert (begun["input_tokens"], begun["cache_creation_input_tokens"]) == (counted, 0), "not known yet"


def test_nothing_is_created_in_a_cache_that_is_off(tmp_path: Path) -> None:
    settings = ServerSettings(model=str(make_model_folder(tmp_path / "toy")), prefix_cache=False, drain_seconds=1)
    with running_server(settings) as server:
        usage = post(server, messages=script(say="a"), **EPHEMERAL).json()["usage"]
    assert (usage["input_tokens"] > 0, usage["cache_creation_input_tokens"]) == (True, 0)


def test_a_silent_stream_has_pings(server: RunningServer) -> None:
    text = post(server, messages=script(say="ab", per_step=1, delay=0.5), max_tokens=2, stream=True).text
    assert PING in text.split("\n\n")
    assert ": keep-alive" not in text
    assert assembled(events_of(text))["content"] == [{"type": "text", "text": "ab"}]


def test_examples_of_a_tools_input_are_shown_and_a_deferred_tool_too(server: RunningServer) -> None:
    tool = TOOL | {"input_examples": [{"city": "Oslo"}], "defer_loading": True}
    told = post(server, messages=script(tell=["prompt"], per_step=900), tools=[tool], max_tokens=4000).json()
    prompt = bytes(json.loads(told["content"][0]["text"])["prompt"]).decode()
    assert '"name": "weather"' in prompt
    assert '"examples": [{"city": "Oslo"}]' in prompt
    certain: dict[str, Any] = {"tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    assert both(server, messages=script(say=call), **certain)["stop_reason"] == "tool_use"


def search(**result: Any) -> list[dict[str, Any]]:
    """A conversation in which the model has searched for a tool, and a question that is a script."""
    called = {"type": "tool_use", "id": "c1", "name": "search", "input": {}}
    found = {
        "type": "tool_result",
        "tool_use_id": "c1",
        "content": [{"type": "tool_reference", "tool_name": "weather"}],
    }
    return [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": [called]},
        {"role": "user", "content": [found, {"type": "text", "text": json.dumps(result)}]},
    ]


def test_a_tool_that_was_searched_for_is_shown_where_it_was_found(server: RunningServer) -> None:
    first = {"name": "search", "description": "Finds tools", "input_schema": {"type": "object"}}
    deferred = TOOL | {"defer_loading": True}
    told = post(server, messages=search(tell=["prompt"], per_step=900), tools=[deferred, first], max_tokens=4000).json()
    prompt = bytes(json.loads(told["content"][0]["text"])["prompt"]).decode()
    assert prompt.count('"name": "weather"') == 1, "what comes before it is the same as before the search"
    shown = (
        '[tool]\n<functions>\n<function>{"description": "Of a city", "name": "weather", "parameters": {"type": "object"'
    )
    assert shown in prompt
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    message = both(server, messages=search(say=call), tools=[deferred, first])
    assert (message["content"][0]["name"], message["content"][0]["input"]) == ("weather", {"city": "Rome"})
    refused = server.http.post("/v1/messages", json={"messages": search(say=""), "tools": [first], "max_tokens": 9})
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], "weather" in error["message"]) == (400, "messages", True)


def test_calls_are_blocks_and_their_results_come_back_as_messages_of_tools(server: RunningServer) -> None:
    say = 'so: <tool_call>{"name": "weather", "arguments": {"city": "Oslo\\u00e9"}}</tool_call>'
    message = both(server, messages=script(say=say, per_step=5), tools=[TOOL])
    assert message["stop_reason"] == "tool_use"
    assert message["content"][0] == {"type": "text", "text": "so:"}
    call = message["content"][1]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "weather", {"city": "Osloé"})
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "other", "content": "no such city", "is_error": True},
        {"type": "text", "text": json.dumps({"tell": True}), "cache_control": {"type": "ephemeral"}},
    ]
    follow = [
        {"role": "user", "content": [{"type": "text", "text": "what"}, {"type": "text", "text": "weather?"}]},
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": results},
    ]
    told = json.loads(post(server, messages=follow, max_tokens=4000).json()["content"][0]["text"])
    assert bytes(told["prompt"]).decode() == (
        '[user]\nwhat\nweather?\n[assistant]\nso:\n<tool_call>\n{"name": "weather", "arguments": {"city": "Osloé"}}'
        '\n</tool_call>\n[tool]\nrain\n[tool]\nError: no such city\n[user]\n{"tell": true}\n[assistant]\n'
    )


def test_one_call_or_a_certain_one_can_be_asked_for(server: RunningServer) -> None:
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    one = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(both(server, messages=script(say=2 * call), tools=[TOOL])["content"]) == 2
    assert len(both(server, messages=script(say=2 * call), tools=[TOOL], tool_choice=one)["content"]) == 1
    certain = {"type": "tool", "name": "weather"}
    message = both(server, messages=script(say=call), tools=[TOOL], tool_choice=certain)
    assert [(block["name"], block["input"]) for block in message["content"]] == [("weather", {"city": "Rome"})]
    message = both(server, messages=script(say=call), tools=[TOOL], tool_choice={"type": "any"})
    assert (message["content"][0]["name"], message["stop_reason"]) == ("weather", "tool_use")
    message = both(server, messages=script(say=call), tools=[TOOL], tool_choice={"type": "none"})
    assert message["content"] == [{"type": "text", "text": call}]


def test_a_call_that_is_cut_has_what_is_whole_of_its_input(server: RunningServer) -> None:
    say = '<tool_call>{"name": "weather", "arguments": {"days": [1, 2], "city": "Rome"}}</tool_call>'
    body = {"messages": script(say=say), "tools": [TOOL], "max_tokens": say.index("Rome") + 2}
    message = post(server, **body).json()
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][0]["input"] == {"days": [1, 2]}


def test_thoughts_are_blocks_of_their_own(thinker: RunningServer) -> None:
    say = "<think>\nhm\n</think>\n\nyes"
    message = both(thinker, messages=script(say=say))
    thought, text = message["content"]
    assert (thought["type"], thought["thinking"], bool(thought["signature"])) == ("thinking", "hm", True)
    assert text == {"type": "text", "text": "yes"}
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": len("<think>\nhm\n</think>") - 7}
    hidden = {"type": "adaptive", "display": "omitted"}
    assert both(thinker, messages=script(say=say), thinking=hidden)["content"][0]["thinking"] == ""
    messages = [*script(tell=True), {"role": "assistant", "content": [thought, text]}, *script(tell=True)]
    reply = post(thinker, messages=messages, max_tokens=4000, thinking={"type": "disabled"}).json()
    assert bytes(json.loads(reply["content"][0]["text"])["prompt"]).endswith(b"<no>")
    reply = post(thinker, messages=messages, max_tokens=4000, thinking={"type": "enabled", "budget_tokens": 1024})
    assert not bytes(json.loads(reply.json()["content"][0]["text"])["prompt"]).endswith(b"<no>")
    reply = post(thinker, messages=script(say=say), output_config={"effort": "high"}).json()
    assert reply["content"][0]["thinking"] == "hm", "Claude Code sends an effort to every model"


def test_an_effort_reaches_a_template_that_knows_it(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", "effort {{ reasoning_effort }}\n" + CHAT_TEMPLATE)
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as server:
        messages = script(tell=["prompt"], per_step=900)
        told = post(server, messages=messages, max_tokens=4000, output_config={"effort": "high"}).json()
    assert bytes(json.loads(told["content"][0]["text"])["prompt"]).startswith(b"effort high\n")


def test_a_thought_that_is_omitted_comes_back_in_its_signature(tmp_path: Path) -> None:
    thought = "{% if message.role == 'assistant' %}{{ message.reasoning_content }};{% endif %}"
    shown = CHAT_TEMPLATE.replace("{{ message.content", thought + "{{ message.content")
    folder = make_model_folder(tmp_path / "toy", shown)
    hidden: dict[str, Any] = {"thinking": {"type": "adaptive", "display": "omitted"}}
    with running_server(ServerSettings(model=str(folder), reasoning_parser="think", drain_seconds=1)) as server:
        message = both(server, messages=script(say="<think>\nhmü\n</think>\n\nyes"), **hidden)
        assert message["content"][0]["thinking"] == ""
        for signature, thought in ((message["content"][0]["signature"], "hmü"), ("thought:%", ""), ("other", "")):
            said = [message["content"][0] | {"signature": signature}, message["content"][1]]
            messages = [
                {"role": "user", "content": "?"},
                {"role": "assistant", "content": said},
                *script(tell=["prompt"], per_step=900),
            ]
            told = post(server, messages=messages, max_tokens=4000).json()["content"][-1]["text"]
            assert f"[assistant]\n{thought};yes" in bytes(json.loads(told)["prompt"]).decode()


def test_a_form_becomes_a_grammar_and_the_last_message_a_beginning(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {}}
    form = {"format": {"type": "json_schema", "schema": schema}}
    reply = post(server, messages=script(tell=True, per_step=200), output_config=form, max_tokens=4000).json()
    told = json.loads(reply["content"][0]["text"])
    assert json.loads(told["sampling"]["grammar"]["text"]) == schema
    begun = [*script(tell=True), {"role": "assistant", "content": "The answer is"}]
    told = json.loads(post(server, messages=begun, max_tokens=4000).json()["content"][0]["text"])
    assert bytes(told["prompt"]).decode().endswith("[assistant]\nThe answer is")


@pytest.mark.parametrize("content", ["", [], [{"type": "text", "text": ""}]])
def test_an_empty_message_of_the_assistants_at_the_end_asks_for_an_ordinary_reply(
    server: RunningServer, content: Any
) -> None:
    asked = script(tell=["prompt"], per_step=200)
    plain = post(server, messages=asked, max_tokens=4000).json()
    empty = post(server, messages=[*asked, {"role": "assistant", "content": content}], max_tokens=4000).json()
    assert empty["content"] == plain["content"]


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages.0.content.0.source.type",
            "missing_required_parameter",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text", None),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
            "messages.0.content",
            "invalid_value",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}
                ]
            },
            "messages",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "messages", "invalid_unicode"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context_length_exceeded"),
        ({"stop_sequences": [""]}, "stop_sequences", "invalid_value"),
        ({"stop_sequences": 5}, "stop_sequences", "invalid_type"),
        ({"stop": ["a"]}, "stop", "unknown_parameter"),
        ({"stop_sequences": ["a"] * 17}, "stop_sequences", "above_limit"),
        ({"tools": [{"type": "retrieval", "top_k": 1}]}, "tools.0.type", "invalid_value"),
        ({"tools": [TOOL | {"input_examples": ["Oslo"]}]}, "tools.0.input_examples.0", "invalid_type"),
        ({"cache_control": True}, "cache_control", "invalid_type"),
        ({"system": [{"type": "thinking", "thinking": "hm"}]}, "system", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice", "invalid_value"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "invalid_value"),
        ({"thinking": {"type": "deep"}}, "thinking.type", "invalid_value"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "unsupported_parameter"),
        ({"n": 2}, "n", "unknown_parameter"),
        ({"speculation": {"trace": True}}, "speculation.trace", "unsupported_parameter"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_wrong_field_is_named(server: RunningServer, fields: dict[str, Any], param: str, code: str | None) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4} | fields
    content = json.dumps(body).encode()
    response = server.http.post("/v1/messages", content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 400, response.text
    reply = TypeAdapter(MessageErrorReply).validate_python(response.json())
    assert (reply["type"], reply["error"]["type"]) == ("error", "invalid_request_error")
    assert (reply["error"]["param"], reply["error"]["code"]) == (param, code or reply["error"]["code"])
    assert not reply["error"]["message"].startswith(("stop ", "stop:")), "the name that chat has for it"
    assert reply["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


def test_fields_that_change_no_answer_are_accepted(server: RunningServer) -> None:
    fields = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": []},
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "medium"},
        "tool_choice": None,
        "top_k": 5,
    }
    assert both(server, messages=script(say="a"), **fields)["content"] == [{"type": "text", "text": "a"}]


def test_errors_have_anthropics_form_on_their_paths_alone(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    settings = ServerSettings(model=str(folder), drain_seconds=1, api_keys="secret", max_body_bytes=20_000)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    with running_server(settings) as server:

        def refusal(status: int, path: str = "/v1/messages", key: str = "secret", **fields: Any) -> dict[str, Any]:
            response = server.http.post(path, json=body | fields, headers={"x-api-key": key})
            assert response.status_code == status, response.text
            reply: dict[str, Any] = response.json()
            assert (reply.get("type") == "error") == path.startswith("/v1/messages"), reply
            error: dict[str, Any] = reply["error"]
            return error

        assert refusal(401, key="wrong")["type"] == "authentication_error"
        assert refusal(401, "/v1/chat/completions", key="wrong")["type"] == "authentication_error"
        assert refusal(404, model="other")["type"] == "not_found_error"
        assert refusal(404, "/v1/chat/completions", model="other")["type"] == "invalid_request_error"
        assert refusal(404, "/v1/messages/batches")["type"] == "not_found_error"
        assert refusal(413, system="x" * 20_000)["type"] == "request_too_large"
        assert refusal(400, "/v1/messages/count_tokens", system=5)["type"] == "invalid_request_error"
        full = json.dumps({"reject": "full", "code": "queue_full"})
        assert refusal(429, messages=[{"role": "user", "content": full}])["type"] == "rate_limit_error"
        broken = {"say": "ab" * 30, "per_step": 1, "delay": 0.02, "crash_after": 9}
        content = body | {"messages": script(**broken), "max_tokens": 60, "stream": True}
        headers = {"x-api-key": "secret"}
        events = events_of(server.http.post("/v1/messages", json=content, headers=headers).text)
        assert events[0]["type"] == "message_start"
        last = events[-1]
        assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error"), last
