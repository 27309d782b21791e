"""Stop strings end what a reply says: not its thought, and not the arguments of a call."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server.config import ServerSettings
from tests.server.endpoints.test_messages import assembled, events_of
from tests.server.endpoints.test_tools import THINKING, TIME, both
from tests.server.servers import RunningServer, make_model_folder, running_server


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "thinker", THINKING)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2)) as running:
        yield running


def call(**arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'time', 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize("per_step", [1, 4, 90])
@pytest.mark.parametrize("tools", [{}, {"tools": [TIME]}])
@pytest.mark.parametrize(
    ("say", "stop", "thought", "content"),
    [
        ("<think>is it END? no</think>yes END no", ["END"], "is it END? no", "yes "),
        ("<think>a\n\nb\n</think>\n\nyes\n\nno", ["\n\n"], "a\n\nb", "yes"),
        ("<think>hm</think>\n\nyes", ["\n", "hm", "think", "/", "<", ">"], "hm", "yes"),
        ("<think>E</think>ND yes", ["END"], "E", "ND yes"),
        ("<think>x</think>a STOP b", ["zz", "TOP", "x"], "x", "a S"),
    ],
)
def test_a_thought_has_no_stop_strings(
    thinker: RunningServer, per_step: int, tools: Any, say: str, stop: list[str], thought: str, content: str
) -> None:
    read = both(thinker, say, per_step, stop=stop, **tools)
    assert (read["thought"], read["content"], read["reason"]) == (thought, content, "stop")


@pytest.mark.parametrize("per_step", [1, 90])
def test_a_thought_that_the_prompt_begins_has_none(thinker: RunningServer, per_step: int) -> None:
    read = both(thinker, "END? no</think>yes END", per_step, stop=["END"], reasoning_effort="high")
    assert (read["thought"], read["content"]) == ("END? no", "yes ")


@pytest.mark.parametrize("per_step", [1, 4, 90])
@pytest.mark.parametrize("stop", ['"', "}", "\n", "time", "tool_call"])
def test_a_call_has_none(server: RunningServer, per_step: int, stop: str) -> None:
    read = both(server, f"now: {call(a='x')}", per_step, stop=[stop], tools=[TIME])
    assert (read["content"], read["calls"]) == ("now:", [("time", '{"a": "x"}')])
    assert read["reason"] == "tool_calls"


@pytest.mark.parametrize("per_step", [1, 4, 90])
def test_what_is_said_beside_a_call_has_them(server: RunningServer, per_step: int) -> None:
    read = both(server, f"E {call(a=1)} ND {call(a=2)}", per_step, stop=["END", "E ND"], tools=[TIME])
    assert [arguments for _, arguments in read["calls"]] == ['{"a": 1}', '{"a": 2}']
    read = both(server, f"one END {call(a=1)}", per_step, stop=["END"], tools=[TIME])
    assert (read["content"], read["calls"], read["reason"]) == ("one ", [], "stop")
    read = both(server, "one\ntwo", per_step, stop=["\n"], tools=[TIME])
    assert (read["content"], read["reason"]) == ("one", "stop")
    read = both(server, "one \n", per_step, stop=[" \n"], tools=[TIME])
    assert (read["content"], read["reason"]) == ("one", "stop")
    read = both(server, "half a <tool_", per_step, stop=["l_"], tools=[TIME])
    assert (read["content"], read["reason"]) == ("half a <too", "stop")


def test_a_stop_sequence_is_reported_where_the_text_has_it(thinker: RunningServer) -> None:
    body: dict[str, Any] = {"max_tokens": 90, "stop_sequences": ["END", "no"]}
    for say, wanted in (("<think>END no</think>yes END", "END"), ("<think>END no</think>yes", None)):
        body["messages"] = [{"role": "user", "content": json.dumps({"say": say})}]
        plain = thinker.http.post("/v1/messages", json=body).json()
        streamed = assembled(events_of(thinker.http.post("/v1/messages", json=body | {"stream": True}).text))
        for reply in (plain, streamed):
            assert [block["type"] for block in reply["content"]] == ["thinking", "text"]
            assert (reply["stop_sequence"], reply["stop_reason"]) == (wanted, "stop_sequence" if wanted else "end_turn")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("per_step", [1, 5, 90])
def test_each_token_before_the_stop_string_has_its_log_probability(
    thinker: RunningServer, stream: bool, per_step: int
) -> None:
    say = "<think>END</think>\n\nyes EN END no"
    body = {"stop": ["END"], "logprobs": True, "stream": stream, "stream_options": {"include_usage": True}}
    reply = thinker.chat(json.dumps({"say": say, "per_step": per_step}), **body)
    lines = reply.text.splitlines() if stream else [f"data: {reply.text}"]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    entries = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        for entry in (choice["logprobs"] or {"content": []})["content"]
    ]
    usage = chunks[-1]["usage"]
    assert "".join(entry["token"] for entry in entries) == say.removesuffix("END no")
    assert usage["completion_tokens"] == len(entries) + len("END")
    assert usage["completion_tokens_details"]["reasoning_tokens"] == len("END</think>")


def test_a_shown_stop_string_ends_what_is_said(thinker: RunningServer) -> None:
    say = json.dumps({"say": "<think>END</think>yes END no"})
    body = {"stop": ["END"], "include_stop_str_in_output": True}
    assert thinker.chat(say, **body).json()["choices"][0]["message"]["content"] == "yes END"
    few = thinker.chat(say, min_tokens=len("<think>END</think>yes END n"), **body).json()["choices"][0]
    assert (few["message"]["content"], few["finish_reason"]) == ("yes END no", "stop")
