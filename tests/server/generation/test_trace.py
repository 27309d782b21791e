"""`speculation.trace`: every token told of once, on the chunk that brings it, with its step."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.servers import RunningServer

SAY = json.dumps({"say": "w\u00f6rds and more", "per_step": 3})


def chunks_of(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with server.http.stream("POST", path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def asked(trace: bool | str, **body: Any) -> dict[str, Any]:
    return {"max_tokens": 50, "speculation": {"trace": trace}} | body


def named_by(*sources: str) -> dict[str, list[str]]:
    return {"named_by": list(sources)}


def traces_in(chunks: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    traces = [choice["trace"] for chunk in chunks for choice in chunk["choices"] if "trace" in choice]
    return [token for trace in traces for token in trace["tokens"]], [step for each in traces for step in each["steps"]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_tokens_of_a_stream_are_its_text_and_their_steps_are_told(server: RunningServer, path: str) -> None:
    prompt = {"prompt": SAY} if "chat" not in path else {"messages": [{"role": "user", "content": SAY}]}
    chunks = chunks_of(server, path, asked(True, **prompt))
    tokens, steps = traces_in(chunks)
    assert "".join(token["text"] for token in tokens) == "w\u00f6rds and more"
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    assert (steps[0]["method"], steps[0]["drafted"], steps[0]["accepted"]) == ("spine", 4, 2)
    assert (steps[0]["seconds"], steps[0]["plain_seconds"], steps[0]["prefill_rows"]) == (0.5, 1.0, 0)
    assert [(token["step"], token["depth"], token["source"]) for token in tokens[:4]] == [
        (1, 1, "context"),
        (1, 2, "context"),
        (1, 3, "bonus"),
        (2, 1, "context"),
    ]
    assert all(
        "logprobs" not in choice or choice["logprobs"] is None for chunk in chunks for choice in chunk["choices"]
    )
    assert not any("tree" in step for step in steps)


@pytest.mark.parametrize("stream", [True, False])
def test_trees_come_on_request(server: RunningServer, stream: bool) -> None:
    body = asked("trees", prompt=SAY)
    chunks = chunks_of(server, "/v1/completions", body) if stream else [server.post(**body).json()]
    _, steps = traces_in(chunks)
    assert steps[0]["tree"] == [
        {"text": "A", "id": 65, "parent": -1, "source": "root", "logprob": None, "accepted": True} | named_by("root"),
        {"text": "B", "id": 66, "parent": 0, "source": "context", "logprob": -0.5, "accepted": False}
        | named_by("context", "ngram"),
    ]


def test_plain_replies_have_the_whole_trace_and_the_same_text(server: RunningServer) -> None:
    reply = server.chat(SAY, **asked(True)).json()["choices"][0]
    assert "".join(token["text"] for token in reply["trace"]["tokens"]) == reply["message"]["content"]
    assert reply["logprobs"] is None
    assert "trace" not in server.chat(SAY, max_tokens=50).json()["choices"][0]


def test_what_a_stop_string_cut_away_is_not_told_of(server: RunningServer) -> None:
    tokens, steps = traces_in(chunks_of(server, "/v1/completions", asked(True, prompt=SAY, stop=["and"])))
    assert "".join(token["text"] for token in tokens) == "w\u00f6rds "
    assert steps[-1]["step"] == tokens[-1]["step"] + 1, "the step that wrote the stop string is the last"


def test_log_probabilities_and_traces_agree(server: RunningServer) -> None:
    body = asked(True, prompt=SAY, logprobs=0)
    choice = server.post(**body).json()["choices"][0]
    *shown, _ = choice["logprobs"]["token_logprobs"]  # the end token is none of the text
    assert [token["logprob"] for token in choice["trace"]["tokens"]] == shown


def test_an_unknown_trace_and_a_traced_response_are_refused(server: RunningServer) -> None:
    refused = server.post(prompt="x", speculation={"trace": "everything"})
    assert (refused.status_code, refused.json()["error"]["param"].startswith("speculation.trace")) == (400, True)
    refused = server.http.post("/v1/responses", json={"input": "x", "speculation": {"trace": True}})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "speculation.trace")
