"""Fields that other servers' clients send: vLLM's names, and OpenAI's where a model cannot tell them apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from server.http.notices import NOTICE
from tests.server.endpoints.test_chat import events_of
from tests.server.endpoints.test_completions import read_stream
from tests.server.servers import CHAT_TEMPLATE, RunningServer, make_model_folder, running_server

END = 256


def script(**fields: Any) -> str:
    return json.dumps(fields)


def told(server: RunningServer, path: str, **body: Any) -> dict[str, Any]:
    """The request as the worker got it."""
    content = script(tell=True, per_step=900)
    prompt = {"prompt": content} if "chat" not in path else {"messages": [{"role": "user", "content": content}]}
    reply = server.http.post(path, json=prompt | {"max_tokens": 2500} | body).json()
    assert "choices" in reply, reply
    choice = reply["choices"][0]
    request: dict[str, Any] = json.loads(choice["text"] if "text" in choice else choice["message"]["content"])
    return request


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_what_vllm_router_adds_to_every_request_is_understood(server: RunningServer, path: str) -> None:
    added = {
        "no_stop_trim": False,
        "separate_reasoning": True,
        "stream_reasoning": True,
        "include_reasoning": True,
        "return_hidden_states": False,
    }
    told(server, path, **added)
    for name, value in added.items():
        prompt: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}
        prompt.pop("messages" if path == "/v1/completions" else "prompt")
        error = server.http.post(path, json=prompt | {name: not value}).json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize("per_step", [1, 3, 30])
@pytest.mark.parametrize("stop", [{}, {"stop": ["c"]}])
def test_token_ids_are_those_of_prompt_and_reply(server: RunningServer, per_step: int, stop: dict[str, Any]) -> None:
    prompt = script(say="ab\u20accd", per_step=per_step, delay=0.01)
    wanted = [*"ab\u20acc".encode()] if stop else [*"ab\u20accd".encode(), END]
    body: dict[str, Any] = {"return_token_ids": True, "max_tokens": 50} | stop
    plain = server.post(prompt=[prompt, prompt], **body).json()
    for choice in plain["choices"]:
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (list(prompt.encode()), wanted)
    assert plain["usage"]["completion_tokens"] == 2 * len(wanted)
    events = read_stream(server, prompt=prompt, **body)
    assert [event["choices"][0].get("prompt_token_ids") for event in events] == [
        list(prompt.encode()),
        *[None] * (len(events) - 1),
    ]
    assert [token_id for event in events for token_id in event["choices"][0]["token_ids"]] == wanted
    chat = server.chat(prompt, **body).json()
    assert chat["prompt_token_ids"] == list(f"[user]\n{prompt}\n[assistant]\n".encode())
    assert chat["choices"][0]["token_ids"] == wanted
    chunks = events_of(server.chat(prompt, stream=True, **body))
    assert chunks[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert not any("prompt_token_ids" in chunk for chunk in chunks[1:])
    ids = [token_id for chunk in chunks for token_id in chunk["choices"][0].get("token_ids", [])]
    assert ids == wanted
    assert "token_ids" not in server.post(prompt=prompt, max_tokens=2).json()["choices"][0]


def test_log_probabilities_may_name_tokens_by_their_ids(server: RunningServer) -> None:
    body: dict[str, Any] = {"return_tokens_as_token_ids": True, "max_tokens": 9}
    logprobs = server.post(prompt=script(say="a\u20ac"), logprobs=1, echo=True, **body).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"][-5:] == ["token_id:97", "token_id:226", "token_id:130", "token_id:172", "token_id:256"]
    assert logprobs["tokens"][0] == f"token_id:{ord('{')}"
    assert logprobs["top_logprobs"][-1] == {"token_id:0": 0.0, "token_id:256": -2.56}
    content = server.chat(script(say="a"), logprobs=True, top_logprobs=1, **body).json()["choices"][0]["logprobs"][
        "content"
    ]
    assert (content[0]["token"], content[0]["bytes"]) == ("token_id:97", [97])
    assert content[0]["top_logprobs"][0]["token"] == "token_id:0"


@pytest.mark.parametrize("per_step", [1, 4, 30])
def test_the_stop_may_be_part_of_the_text(server: RunningServer, per_step: int) -> None:
    prompt = script(say="one END two", per_step=per_step)
    body: dict[str, Any] = {"include_stop_str_in_output": True, "max_tokens": 40}
    for stop in ({"stop": ["zz", "ND", "END"]}, {"stop_token_ids": [ord("D")]}):
        plain = server.post(prompt=prompt, **stop, **body).json()["choices"][0]
        assert (plain["text"], plain["finish_reason"]) == ("one END", "stop")
        streamed = read_stream(server, prompt=prompt, **stop, **body)
        assert "".join(event["choices"][0]["text"] for event in streamed) == "one END"
        chat = server.chat(prompt, **stop, **body).json()["choices"][0]["message"]["content"]
        assert chat == "one END"
    assert server.post(prompt=prompt, **body).json()["choices"][0]["text"] == "one END two", "the end token has no text"


def test_special_tokens_may_be_part_of_the_text(server: RunningServer) -> None:
    body: dict[str, Any] = {"max_tokens": len("ab") + 2, "ignore_eos": True, "seed": 1}
    prompt = script(say="ab")
    assert "<|end|>" not in server.post(prompt=prompt, **body).json()["choices"][0]["text"]
    shown = server.post(prompt=prompt, skip_special_tokens=False, **body).json()["choices"][0]["text"]
    assert shown.startswith("ab<|end|>")
    ended = {"skip_special_tokens": False, "max_tokens": 9}
    assert server.post(prompt=prompt, **ended).json()["choices"][0]["text"] == "ab"
    kept = server.post(prompt=prompt, include_stop_str_in_output=True, **ended).json()["choices"][0]["text"]
    assert kept == "ab<|end|>"
    reply = server.http.post("/v1/responses", json={"input": prompt, "ignore_eos": True, "max_output_tokens": 4})
    assert "<|end|>" not in reply.text


def test_a_prompt_may_be_shortened_from_its_beginning(server: RunningServer) -> None:
    reply = server.post(prompt="x" * 50 + "abc", truncate_prompt_tokens=3, echo=True, max_tokens=1).json()
    assert reply["choices"][0]["text"][:3] == "abc"
    assert reply["usage"]["prompt_tokens"] == 3
    whole = server.post(prompt="abc", truncate_prompt_tokens=3, max_tokens=1).json()
    assert whole["usage"]["prompt_tokens"] == 3
    long_text = "x" * 5000
    assert server.post(prompt=long_text, max_tokens=10).status_code == 400
    fitted = server.post(prompt=long_text, truncate_prompt_tokens=-1, max_tokens=10).json()
    assert fitted["usage"]["total_tokens"] == 4096
    longer = "x" * 50_000  # than the context could be in the longest tokens
    assert server.post(prompt=longer, max_tokens=10).json()["error"]["code"] == "context_length_exceeded"
    assert server.post(prompt=longer, truncate_prompt_tokens=-1, max_tokens=10).json()["usage"]["total_tokens"] == 4096
    assert server.chat(longer, truncate_prompt_tokens=5, max_tokens=10).json()["usage"]["prompt_tokens"] == 5
    chat = server.chat(long_text, truncate_prompt_tokens=-1, max_tokens=10).json()
    assert chat["usage"]["total_tokens"] == 4096
    for wrong in (0, -2):
        refused = server.post(prompt="a", truncate_prompt_tokens=wrong).json()["error"]
        assert refused["param"] == "truncate_prompt_tokens"


def test_usage_comes_with_every_chunk_only_where_usage_is_included(server: RunningServer) -> None:
    options = {"continuous_usage_stats": True}
    prompt = script(say="x" * 9, per_step=3, delay=0.02)
    assert not any(
        "usage" in event for event in read_stream(server, prompt=prompt, max_tokens=9, stream_options=options)
    )
    assert not any("usage" in event for event in events_of(server.chat(prompt, stream=True, stream_options=options)))
    both = options | {"include_usage": True}
    assert all(event["usage"] for event in read_stream(server, prompt=prompt, max_tokens=9, stream_options=both))


def test_a_plain_reply_says_that_no_prompt_log_probabilities_were_asked_for(server: RunningServer) -> None:
    assert server.chat("a", max_tokens=1, prompt_logprobs=None).json()["prompt_logprobs"] is None
    assert server.post(prompt="a", max_tokens=1).json()["choices"][0]["prompt_logprobs"] is None
    assert len(server.post(prompt="ab", max_tokens=1, prompt_logprobs=0).json()["choices"][0]["prompt_logprobs"]) == 2


@pytest.mark.parametrize(
    ("bias", "param"),
    [({"1": 0, "word": 5}, "logit_bias.word"), ({"7": 101}, "logit_bias.7"), ({"8": "5"}, "logit_bias.8")],
)
def test_the_entry_of_a_bias_that_cannot_be_read_is_named(server: RunningServer, bias: Any, param: str) -> None:
    error = server.post(prompt="a", logit_bias=bias).json()["error"]
    assert error["param"] == param
    assert param.rpartition(".")[2] in error["message"]


def test_what_openai_accepts_and_changes_nothing_here_is_accepted(server: RunningServer) -> None:
    ignored = {
        "prompt_cache_options": {"mode": "implicit"},
        "prompt_cache_key": "a",
        "prompt_cache_retention": "24h",
        "safety_identifier": "a",
        "service_tier": "flex",
        "metadata": {"a": "b"},
        "client_metadata": {"a": "b"},
        "modalities": ["text"],
    }
    for fields in (ignored, {"verbosity": "medium"}, {"verbosity": "low"}):
        assert server.chat("a", max_tokens=1, **fields).status_code == 200
    for effort in ("none", "minimal", "low", "medium", "high", "xhigh"):
        assert server.chat("a", max_tokens=1, reasoning_effort=effort).status_code == 200, (
            "there is nothing to make less"
        )


def test_an_effort_that_would_change_something_is_honoured_or_refused(tmp_path: Path) -> None:
    switched = CHAT_TEMPLATE + "{# </think> #}{% if enable_thinking is false %}<think></think>{% endif %}"
    folder = make_model_folder(tmp_path / "switched", switched)
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as server:
        assert bytes(told(server, "/v1/chat/completions", reasoning_effort="none")["prompt"]).endswith(b"</think>")
        assert not bytes(told(server, "/v1/chat/completions", reasoning_effort="medium")["prompt"]).endswith(
            b"</think>"
        )
        told_of = server.chat("a", reasoning_effort="low")
        assert told_of.status_code == 200
        assert (
            told_of.headers[NOTICE] == "reasoning_effort changes nothing: this model's chat template does not know it."
        )
    folder = make_model_folder(tmp_path / "fixed", CHAT_TEMPLATE + "{# </think> #}")
    with running_server(ServerSettings(model=str(folder), drain_seconds=1)) as server:
        assert server.chat("a", reasoning_effort="none").json()["error"]["param"] == "reasoning_effort"


def test_beam_search_is_refused_with_what_there_is_instead(server: RunningServer) -> None:
    error = server.post(prompt="a", use_beam_search=True, n=2, best_of=2).json()["error"]
    assert (error["param"], "best_of" in error["message"]) == ("use_beam_search", True)
    assert server.post(prompt="a", use_beam_search=False, max_tokens=1).status_code == 200


def test_a_path_of_other_servers_answers_with_a_sentence(server: RunningServer) -> None:
    for path in ("/v1/rerank", "/v1/audio/transcriptions"):
        response = server.http.post(path, json={"input": "a", "model": "toy"})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "unsupported_endpoint")
        assert path in error["message"]
        assert "/v1/completions" in error["message"]
    assert server.http.post("/v1/nonsense", json={}).json()["error"]["code"] == "not_found"


def test_a_base_url_that_lacks_the_version_is_told(server: RunningServer) -> None:
    for path in ("/chat/completions", "/completions", "/responses", "/messages", "/models"):
        response = server.http.post(path, json={}) if path != "/models" else server.http.get(path)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (404, "not_found")
        assert error["message"].endswith(f"The client's base URL lacks /v1: this server has /v1{path}.")
        twice = server.http.post(f"/v1/v1{path}", json={}).json()["error"]["message"]
        assert twice.endswith(f"The client's base URL has one /v1 too many: this server has /v1{path}.")
    assert "base URL" not in server.http.get("/nonsense").json()["error"]["message"]


def test_a_slash_at_the_end_leads_nowhere_and_is_told(server: RunningServer) -> None:
    for path in ("/v1/completions/", "/v1/chat/completions/", "/health/"):
        response = server.http.request("GET" if path == "/health/" else "POST", path, headers={"Host": "localhost:1"})
        assert (response.status_code, "location" in response.headers) == (404, False)
        assert response.json()["error"]["message"].endswith("No path of this server ends in a slash: leave it out.")


def test_no_page_has_scripts_from_elsewhere(server: RunningServer) -> None:
    assert [server.get(path).status_code for path in ("/docs", "/docs/oauth2-redirect", "/redoc")] == [404] * 3
    assert server.get("/openapi.json").json()["paths"]["/v1/completions"]


def test_ids_have_the_form_clients_look_for(server: RunningServer) -> None:
    assert server.post(prompt="a", max_tokens=1).json()["id"].startswith("cmpl-")
    assert server.chat("a", max_tokens=1).json()["id"].startswith("chatcmpl-")
    assert (
        server.http.post("/v1/responses", json={"input": "a", "max_output_tokens": 1}).json()["id"].startswith("resp_")
    )
