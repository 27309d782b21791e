"""The whole of it: the openai client, the server, the real worker on the bundled model."""

import json
import re
from itertools import pairwise
from typing import Any

import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from server.generation.plan import choice_seed
from tests.server.servers import PATIENCE, RunningServer, but_for_the_cache, running_server, wait_until

PROMPT = "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n"
METHODS = ("none", "spine", "lookup", "stand", "dynamic", "linear")
SAMPLED = {"temperature": 0.8, "seed": 1234, "top_p": 0.95}


def complete(server: RunningServer, **body: Any) -> dict[str, Any]:
    response = server.post(**{"prompt": PROMPT, "max_tokens": 40} | body)
    assert response.status_code == 200, response.text
    reply: dict[str, Any] = response.json()
    return reply


def texts(reply: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in reply["choices"]]


@pytest.mark.parametrize("sampling", [{"temperature": 0}, SAMPLED], ids=["greedy", "sampled"])
def test_streamed_and_plain_replies_are_equal_whatever_drafts(real: RunningServer, sampling: dict[str, Any]) -> None:
    client, replies = real.client(), set()
    for method in METHODS:
        arguments: dict[str, Any] = {"model": real.model, "prompt": PROMPT, "max_tokens": 40, **sampling}
        arguments["extra_body"] = {"speculation": {"method": method}}
        plain = client.completions.create(**arguments)
        chunks = list(client.completions.create(**arguments, stream=True, stream_options={"include_usage": True}))
        streamed = "".join(choice.text for chunk in chunks for choice in chunk.choices)
        assert streamed == plain.choices[0].text
        assert but_for_the_cache(chunks[-1].usage) == but_for_the_cache(plain.usage)
        assert plain.usage is not None
        assert plain.usage.total_tokens == plain.usage.prompt_tokens + plain.usage.completion_tokens
        assert plain.choices[0].finish_reason in ("stop", "length")
        replies.add((streamed, plain.usage.completion_tokens))
    assert len(replies) == 1


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_four_choices_are_equal_whatever_drafts(real: RunningServer, temperature: float) -> None:
    body = {"n": 4, "seed": 77, "temperature": temperature, "top_p": 0.95, "max_tokens": 30}
    plain = texts(complete(real, **body, speculation={"method": "none"}))
    assert (len(set(plain)) > 1) == (temperature > 0)
    for method in ("stand", "dynamic", "auto"):
        assert texts(complete(real, **body, speculation={"method": method})) == plain


def test_a_seed_gives_the_same_reply_and_another_seed_another(real: RunningServer) -> None:
    first = texts(complete(real, temperature=1.0, seed=1))
    assert texts(complete(real, temperature=1.0, seed=1)) == first
    assert texts(complete(real, temperature=1.0, seed=2)) != first


def test_choices_of_several_prompts_equal_their_solo_replies(real: RunningServer) -> None:
    both = complete(real, prompt=[PROMPT, "import os\n"], n=2, temperature=1.0, seed=9)
    assert len(both["choices"]) == 4
    assert both["choices"][0]["text"] == complete(real, temperature=1.0, seed=9)["choices"][0]["text"]
    assert complete(real, prompt=[PROMPT, "import os\n"], n=2, temperature=1.0, seed=9)["choices"] == both["choices"]


def test_sixteen_choices_stream_interleaved_and_each_equals_its_solo_reply(real: RunningServer) -> None:
    client = real.client()
    arguments: dict[str, Any] = {"model": real.model, "prompt": PROMPT, "max_tokens": 24, "temperature": 0.8}
    arguments["extra_body"] = {"speculation": {"method": "stand"}, "session_id": "sixteen"}
    streamed, order = [""] * 16, []
    for chunk in client.completions.create(**arguments, n=16, seed=5, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
            order.append(choice.index)
    assert sum(one != other for one, other in pairwise(order)) > 16, "the choices came one after the other"
    for number, text in enumerate(streamed):
        arguments["extra_body"] = {"speculation": {"method": "none"}}
        solo = client.completions.create(**arguments, seed=choice_seed(5, 0, number))
        assert solo.choices[0].text == text


def test_token_ids_and_text_are_the_same_prompt_and_echo_repeats_it(real: RunningServer) -> None:
    tokenizer = real.served.tokenizer
    assert tokenizer is not None
    token_ids = tokenizer.encode(PROMPT)
    from_text = complete(real, temperature=0, echo=True)
    from_ids = complete(real, temperature=0, echo=True, prompt=token_ids)
    assert from_text["choices"] == from_ids["choices"]
    assert from_text["choices"][0]["text"].startswith(PROMPT)
    assert but_for_the_cache(from_text["usage"]) == but_for_the_cache(from_ids["usage"])
    assert from_text["usage"]["prompt_tokens"] == len(token_ids)


@pytest.mark.parametrize("method", METHODS)
def test_a_stop_string_inside_an_accepted_run_cuts_exactly_there(real: RunningServer, method: str) -> None:
    whole = complete(real, temperature=0, ignore_eos=True)["choices"][0]["text"]
    stop = whole[20:23]
    cut = complete(real, temperature=0, ignore_eos=True, stop=[stop], speculation={"method": method})
    assert cut["choices"][0]["text"] == whole[: whole.find(stop)]
    assert cut["choices"][0]["finish_reason"] == "stop"
    assert 0 < cut["usage"]["completion_tokens"] < 40


def test_the_report_agrees_with_the_usage(real: RunningServer) -> None:
    reply = complete(real, temperature=0, speculation={"method": "spine", "report": True}, ignore_eos=True)
    report = reply["choices"][0]["speculation"]
    assert report["method"] == "spine"
    assert report["accepted"] == sum(report["accepted_by_source"].values()) == sum(report["accepted_by_depth"])
    assert report["accepted"] + report["steps"] >= 39
    assert report["acceptance_length"] >= 1
    plain = complete(real, temperature=0, speculation={"method": "none", "report": True}, ignore_eos=True)
    assert plain["choices"][0]["speculation"]["drafted"] == 0
    assert plain["choices"][0]["speculation"]["acceptance_length"] == 1.0


def test_the_draft_model_is_in_the_report_and_in_the_metrics(real: RunningServer) -> None:
    refused = real.metric("gander_draft_refusals_total")
    reply = complete(
        real, temperature=0, speculation={"method": "dynamic", "max_nodes": 8, "report": True}, ignore_eos=True
    )
    report = reply["choices"][0]["speculation"]
    assert (report["method"], report["choice"], report["reason"]) == ("dynamic", "requested", "requested")
    assert report["steps_by_method"] == {"dynamic": report["steps"]}
    assert 0 < report["draft_model_seconds"] < report["decode_seconds"] + report["time_to_first_token"]
    assert report["drafted"] == report["drafted_by_source"]["draft_model"] > report["accepted"] > 0
    wait_until(lambda: 'gander_choices_total{choice="requested",method="dynamic",' in real.get("/metrics").text)
    wait_until(lambda: real.metric("gander_slots_used") == 0)
    assert real.metric("gander_draft_bytes") > 1e6
    assert real.metric("gander_draft_refusals_total") == refused == 0
    assert 'phase="draft_model"}' in real.get("/metrics").text
    spine = complete(real, temperature=0, speculation={"method": "spine", "report": True}, ignore_eos=True)
    assert spine["choices"][0]["speculation"]["draft_model_seconds"] == 0
    assert spine["choices"][0]["text"] == reply["choices"][0]["text"]


def test_the_report_says_what_every_source_of_one_tree_foretold(real: RunningServer) -> None:
    speculation = {"method": "auto", "max_nodes": 16, "report": True}
    body = {"temperature": 0, "ignore_eos": True, "max_tokens": 100, "speculation": speculation}
    report = complete(real, **body)["choices"][0]["speculation"]
    assert (report["method"], report["choice"], report["steps_by_method"]) == (
        "auto",
        "requested",
        {"auto": report["steps"]},
    )
    assert set(report["foretold_by_source"]) == {"context", "adjacency", "ngram", "draft_model"}
    assert 0 < max(report["foretold_by_source"].values()) <= 100
    alone = {**speculation, "sources": ["adjacency"]}
    report = complete(real, **{**body, "speculation": alone})["choices"][0]["speculation"]
    assert set(report["foretold_by_source"]) == set(report["drafted_by_source"]) == {"adjacency"}


def test_a_stream_says_how_far_its_prompt_is() -> None:
    settings = ServerSettings(drain_seconds=2, keep_alive_seconds=0.001, max_batch_rows=64)
    with running_server(settings, WORKER_COMMAND) as server:
        body: dict[str, Any] = {"prompt": 30 * PROMPT, "max_tokens": 3}
        told = re.findall(r"^: prompt (\d+)/(\d+)$", server.post(**body, stream=True).text, re.M)
        num_tokens = complete(server, **body)["usage"]["prompt_tokens"]
    assert told
    assert {int(total) for _, total in told} == {num_tokens}
    assert all(int(processed) < num_tokens for processed, _ in told)


def test_a_client_that_leaves_frees_its_slots(real: RunningServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 700, "ignore_eos": True, "stream": True, "n": 16}
    with real.http.stream("POST", "/v1/completions", json=body) as reply:
        pieces = reply.iter_raw()  # kept: dropping it would close the connection
        next(pieces)
        wait_until(lambda: real.metric("gander_running") > 0)  # or 0 might be from before
    wait_until(lambda: real.served.client.num_open == 0)
    wait_until(lambda: real.metric("gander_running") == 0)


def test_metrics_move_with_the_work(real: RunningServer) -> None:
    before = {name: real.metric(name) for name in ("gander_emitted_tokens_total", "vllm:prompt_tokens_total")}
    reply = complete(real, temperature=0, ignore_eos=True)
    wait_until(lambda: real.metric("gander_emitted_tokens_total") == before["gander_emitted_tokens_total"] + 40)
    prompt_tokens = reply["usage"]["prompt_tokens"]
    assert real.metric("vllm:prompt_tokens_total") == before["vllm:prompt_tokens_total"] + prompt_tokens
    assert real.metric("gander_step_seconds_total") > 0
    assert real.metric("gander_speedup") > 0
    assert real.metric("gander_worker_resident_bytes") > 1e7


def test_a_prompt_is_run_once_for_each_salt(real: RunningServer) -> None:
    prompt = "Nobody has asked this before: " + PROMPT
    hits = real.metric("gander_prefix_cache_hits_tokens_total")
    replies = [
        complete(real, prompt=prompt, temperature=0, speculation={"report": True}, **fields)
        for fields in ({}, {}, {"cache_salt": "x"}, {"cache_salt": "x"})
    ]
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies]
    num_tokens = replies[0]["usage"]["prompt_tokens"]
    assert cached[0] == cached[2] == 0
    for count in (cached[1], cached[3]):
        assert max(num_tokens - 33, 15) < count < num_tokens
    assert [reply["choices"][0]["speculation"]["cached_tokens"] for reply in replies] == cached
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    wait_until(lambda: real.metric("gander_prefix_cache_hits_tokens_total") == hits + sum(cached))
    assert real.metric("vllm:prefix_cache_hits_total") == hits + sum(cached)
    assert real.metric("gander_slots_cached") >= max(cached)


def test_the_choices_of_a_cold_call_run_their_prompt_once(real: RunningServer) -> None:
    body = {"prompt": "Four choices of what is new: " + PROMPT, "n": 4, "temperature": 0.8, "seed": 3}
    reply = complete(real, **body, speculation={"report": True})
    cached = sorted(choice["speculation"]["cached_tokens"] for choice in reply["choices"])
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == cached[0] == 0
    assert cached[1] > 0


def test_the_raw_bytes_of_a_stream_are_frames_and_done(real: RunningServer) -> None:
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "stream": True}
    raw = real.http.post("/v1/completions", json=body, timeout=PATIENCE).content
    frames = raw.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(frame.removeprefix(b"data: ")) for frame in frames[:-2]]
    assert len({(chunk["id"], chunk["created"]) for chunk in chunks}) == 1
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[:-1] == [None] * (len(chunks) - 1)
    assert reasons[-1] in ("stop", "length")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"speculation": {"method": "magic"}}, "speculation.method"),
        ({"speculation": {"max_nodes": 10**6}}, "speculation.max_nodes"),
        ({"prompt": [10**9]}, "prompt"),
        ({"min_tokens": 10**6}, "min_tokens"),
    ],
)
def test_what_the_model_cannot_do_is_refused_by_name(real: RunningServer, fields: dict[str, Any], param: str) -> None:
    response = real.post(**{"prompt": PROMPT} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


BOMBS: dict[str, dict[str, Any]] = {
    "regex": {"structured_outputs": {"regex": "(x{1,1000}){1,1000}"}, "max_tokens": 200, "temperature": 1, "seed": 0},
    "rule": {
        "structured_outputs": {"grammar": 'start: a{1000000}\na: "x"'},
        "speculation": {"method": "spine", "max_nodes": 8},
    },
    "number": {"structured_outputs": {"json": {"multipleOf": 999983}}, "n": 32},
    "lexemes": {"structured_outputs": {"grammar": "start: " + "|".join(f"/[a-z]+{i:x}/" for i in range(4000))}},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_grammar_bomb_fails_alone_beside_a_running_stream(real: RunningServer, name: str) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 150, "seed": 5, "temperature": 0.8, "ignore_eos": True}
    alone = texts(complete(real, **asked))
    before = real.get("/health").json()
    with real.http.stream("POST", "/v1/completions", json={**asked, "stream": True}) as running:
        lines = running.iter_lines()
        first = next(line for line in lines if line.startswith("data: {"))
        bomb = real.post(prompt="x", **BOMBS[name])
        neighbour = real.post(prompt="x", max_tokens=1)
        frames = [first, *(line for line in lines if line.startswith("data: {"))]
    assert bomb.status_code == 400
    assert bomb.json()["error"]["code"] in ("invalid_grammar", "broken_grammar")
    assert neighbour.status_code == 200
    assert "".join(json.loads(frame[6:])["choices"][0]["text"] for frame in frames) == alone[0]
    assert real.get("/ready").status_code == 200
    after = real.get("/health").json()
    assert [after[name] for name in ("worker_pid", "restarts")] == [before[name] for name in ("worker_pid", "restarts")]
