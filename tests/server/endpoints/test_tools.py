"""Tools and reasoning over HTTP, in front of the scripted worker: streamed and plain, by the real openai client."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.config import ServerSettings
from tests.server.endpoints.test_chat import events_of
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"$ref": "#/$defs/City"}},
            "required": ["city"],
            "$defs": {"City": {"type": "string"}},
        },
    },
}
TIME: Any = {"type": "function", "function": {"name": "time"}}
THINKING = CHAT_TEMPLATE + "{# <think></think> reasoning_effort #}{% if reasoning_effort %}<think>{% endif %}"


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "thinker", THINKING)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as running:
        yield running


def both(server: RunningServer, say: str, per_step: int = 3, **fields: Any) -> dict[str, Any]:
    """The message of the plain reply, which the streamed one must equal but for the calls' random ids."""
    client = server.client()
    content = json.dumps({"say": say, "per_step": per_step})
    messages: Any = [{"role": "user", "content": content}]
    arguments: dict[str, Any] = {"model": server.model, "messages": messages, **fields}
    plain = client.chat.completions.create(**arguments)
    with client.chat.completions.stream(**arguments, stream_options={"include_usage": True}) as stream:
        thought = "".join(
            event.chunk.choices[0].delta.model_dump().get("reasoning_content") or ""
            for event in stream
            if event.type == "chunk" and event.chunk.choices
        )
        streamed = stream.get_final_completion()
    assert streamed.usage == plain.usage
    assert streamed.choices[0].finish_reason == plain.choices[0].finish_reason
    message = plain.choices[0].message
    other = streamed.choices[0].message
    assert (other.content or None) == (message.content or None)
    assert thought == message.model_dump().get("reasoning_content", "")
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert [(call.function.name, call.function.arguments) for call in other.tool_calls or []] == calls
    assert len({call.id for call in message.tool_calls or []}) == len(calls)
    return {
        "content": message.content,
        "thought": thought,
        "calls": calls,
        "reason": plain.choices[0].finish_reason,
        "usage": plain.usage,
    }


@pytest.mark.parametrize("per_step", [1, 7, 200])
def test_calls_are_the_same_streamed_and_plain(server: RunningServer, per_step: int) -> None:
    say = (
        'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
    )
    read = both(server, say, per_step, tools=[WEATHER, TIME])
    assert read["content"] == "Let me see."
    assert read["calls"] == [("weather", '{"city": "Rome"}'), ("time", "{}")]
    assert read["reason"] == "tool_calls"
    assert read["usage"].completion_tokens == len(say) + 1


def test_only_one_call_is_made_where_parallel_ones_are_not_wanted(server: RunningServer) -> None:
    one = '<tool_call>{"name": "time", "arguments": {}}</tool_call>'
    read = both(server, one + one, tools=[TIME], parallel_tool_calls=False)
    assert (read["calls"], read["reason"]) == ([("time", "{}")], "tool_calls")
    assert read["usage"].completion_tokens == len(one)


def test_a_reply_without_a_call_is_content(server: RunningServer) -> None:
    read = both(server, "no call", tools=[TIME])
    assert (read["content"], read["calls"], read["reason"]) == ("no call", [], "stop")
    read = both(server, "<tool_call>{}</tool_call>", tools=[TIME], tool_choice="none")
    assert (read["content"], read["calls"]) == ("<tool_call>{}</tool_call>", [])


CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
NAMED = {"type": "function", "function": {"name": "weather"}}


def test_a_named_call_is_read_in_the_familys_form(server: RunningServer) -> None:
    read = both(server, CALL, tools=[WEATHER, TIME], tool_choice=NAMED)
    assert (read["calls"], read["content"]) == ([("weather", '{"city": "Oslo"}')], None)


def test_required_calls_are_read_in_the_familys_form(server: RunningServer) -> None:
    say = f'{CALL}\n<tool_call>\n{{"name": "time", "arguments": {{}}}}\n</tool_call>'
    read = both(server, say, tools=[WEATHER, TIME], tool_choice="required")
    assert read["calls"] == [("weather", '{"city": "Oslo"}'), ("time", "{}")]
    assert read["reason"] == "tool_calls"


def test_a_required_call_that_is_cut_shows_nothing_of_itself(server: RunningServer) -> None:
    read = both(server, CALL[:20], tools=[WEATHER], tool_choice="required")
    assert (read["content"] or "", read["calls"]) == ("", [])


@pytest.mark.parametrize("per_step", [1, 200])
@pytest.mark.parametrize(
    ("say", "choice", "content"),
    [
        (CALL, NAMED, None),
        (CALL, "required", None),
        (CALL, "auto", None),
        (f"So: {CALL}", "auto", ""),
        ("no call", "auto", ""),
    ],
)
def test_the_first_chunk_has_null_content_where_nothing_is_said_before_a_call(
    server: RunningServer, say: str, choice: Any, content: str | None, per_step: int
) -> None:
    prompt = json.dumps({"say": say, "per_step": per_step})
    chunks = events_of(server.chat(prompt, tools=[WEATHER], tool_choice=choice, stream=True))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": content}
    if choice != "auto":
        chunks = events_of(server.chat(prompt, tools=[WEATHER], tool_choice=choice, stream=True, logprobs=True))
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}


def test_a_call_without_marks_that_is_cut_is_kept_as_far_as_it_goes(server: RunningServer) -> None:
    bare = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 2 * len(bare) - 4}
    plain = server.chat(script_of(f"{bare}\n{bare}"), **fields).json()["choices"][0]
    calls = [call["function"]["arguments"] for call in plain["message"]["tool_calls"]]
    assert (calls, plain["message"]["content"]) == (['{"city": "Oslo"}', '{"city": "Os'], None)
    chunks = events_of(server.chat(script_of(f"{bare}\n{bare}"), **fields, stream=True))
    deltas = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    pieces = [[each["function"]["arguments"] for each in deltas if each["index"] == index] for index in (0, 1)]
    assert ["".join(each) for each in pieces] == calls
    assert plain["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"


FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("choice", ["required", NAMED])
@pytest.mark.parametrize("form", [FORM, {"type": "json_object"}])
def test_a_call_that_must_come_wins_over_a_response_format(server: RunningServer, choice: Any, form: Any) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    assert both(server, CALL, **fields, response_format=form) == both(server, CALL, **fields)
    flat = {"type": "function", **WEATHER["function"]}
    body = {"input": script_of(CALL), "tools": [flat], "text": {"format": {"type": "json_object"}}}
    body["tool_choice"] = choice if choice == "required" else {"type": "function", "name": "weather"}
    reply = server.http.post("/v1/responses", json=body).json()
    assert [(item["type"], item["arguments"]) for item in reply["output"]] == [("function_call", '{"city": "Oslo"}')]


def script_of(text: str) -> str:
    return json.dumps({"say": text})


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_are_shown_and_called(server: RunningServer, mode: str) -> None:
    chosen = [{"type": "function", "function": {"name": "time"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": chosen}}
    reply = server.chat(
        '{"tell": true, "per_step": 900}', tools=[WEATHER, TIME], tool_choice=choice, logprobs=True, max_tokens=3000
    ).json()
    tokens = reply["choices"][0]["logprobs"]["content"]
    request = json.loads(bytes(byte for token in tokens for byte in token["bytes"]))
    prompt = bytes(request["prompt"]).decode()
    assert '"time"' in prompt
    assert '"weather"' not in prompt
    if mode == "required":
        grammar = request["sampling"]["grammar"]["text"]
        assert ("time" in grammar, "weather" in grammar) == (True, False)
    flat = [{"type": "function", "name": "time"}]
    body = {"input": script_of("[]"), "tools": [{"type": "function", **each["function"]} for each in (WEATHER, TIME)]}
    body["tool_choice"] = {"type": "allowed_tools", "mode": mode, "tools": flat}
    reply = server.http.post("/v1/responses", json=body).json()
    assert reply["tool_choice"] == body["tool_choice"]


@pytest.mark.parametrize(
    "allowed",
    [
        {"mode": "none", "tools": [{"type": "function", "function": {"name": "time"}}]},
        {"mode": "auto", "tools": []},
        {"mode": "required", "tools": [{"type": "mcp", "server_label": "x"}]},
        {"mode": "auto", "tools": [{"type": "function", "function": {"name": "other"}}]},
        {"mode": "auto"},
        "time",
    ],
)
def test_allowed_tools_that_cannot_be_read_are_refused(server: RunningServer, allowed: Any) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    refused = server.chat("a", tools=[TIME], tool_choice=choice)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


def test_two_constraints_at_once_are_refused(server: RunningServer) -> None:
    response = server.chat("a", tools=[TIME], tool_choice="required", guided_regex="a")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tool_choice"


def test_tools_and_a_form_that_is_no_json_are_refused(server: RunningServer) -> None:
    refused = server.chat("a", tools=[TIME], guided_regex="a")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "guided_regex")


def test_a_conversation_with_calls_and_results_is_rendered(server: RunningServer) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "time", "arguments": '{"zone": "utc"}'}}
    messages = [
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"tell": true}'},
    ]
    body = {"messages": messages, "tools": [TIME]}
    reply = server.http.post("/v1/chat/completions", json=body).json()
    text = bytes(json.loads(reply["choices"][0]["message"]["content"])["prompt"]).decode()
    assert '<tool_call>\n{"name": "time", "arguments": {"zone": "utc"}}\n</tool_call>' in text
    assert text.index("<tools>") < text.index("when?")


def test_thoughts_are_reasoning_content_and_counted(thinker: RunningServer) -> None:
    read = both(thinker, "<think>\nhm\n</think>\n\nyes")
    assert (read["thought"], read["content"]) == ("hm", "yes")
    assert read["usage"].completion_tokens_details.reasoning_tokens == len("\nhm\n</think>")
    read = both(thinker, "hm</think>yes", reasoning_effort="high")
    assert (read["thought"], read["content"]) == ("hm", "yes")
    call = '<think>a</think><tool_call>{"name": "time", "arguments": {}}</tool_call>'
    read = both(thinker, call, tools=[TIME])
    assert (read["thought"], read["calls"]) == ("a", [("time", "{}")])


def test_a_constrained_reply_is_all_content(thinker: RunningServer) -> None:
    reply = thinker.chat('{"say": "<think>a</think>b"}', guided_regex="a").json()
    assert reply["choices"][0]["message"]["content"] == "<think>a</think>b"
