"""Completions through the real openai client and through raw bytes, in front of the scripted worker."""

import json
import re
import socket
import threading
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from server.schemas.completions import Completion, CompletionChoice
from tests.server.servers import RunningServer, wait_until


def script(**fields: Any) -> str:
    return json.dumps(fields)


def read_stream(server: RunningServer, **body: Any) -> list[Any]:
    """The events of a stream, [DONE] checked and left out."""
    response = server.post(stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    frames = [frame for frame in response.text.split("\n\n") if frame and not frame.startswith(":")]
    assert frames.pop() == "data: [DONE]"
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def test_plain_and_streamed_replies_have_the_same_text_usage_and_reason(server: RunningServer) -> None:
    client = server.client()
    arguments: dict[str, Any] = {"model": server.model, "prompt": "hello", "max_tokens": 50, "seed": 7}
    plain = client.completions.create(**arguments)
    assert plain.choices[0].finish_reason == "length"
    assert plain.usage is not None
    assert (plain.usage.prompt_tokens, plain.usage.completion_tokens, plain.usage.total_tokens) == (5, 50, 55)
    text, reasons, usage = "", [], None
    for chunk in client.completions.create(**arguments, stream=True, stream_options={"include_usage": True}):
        text += "".join(choice.text for choice in chunk.choices)
        reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
        usage = chunk.usage or usage
    assert text == plain.choices[0].text
    assert len(text) == 50
    assert reasons == ["length"]
    assert usage == plain.usage


def test_the_raw_bytes_of_a_stream_are_what_clients_parse(server: RunningServer) -> None:
    body = {"model": server.model, "prompt": script(say="ab€", per_step=2, delay=0.05), "stream": True, "max_tokens": 9}
    response = server.http.post("/v1/completions", json=body, headers={"X-Request-Id": "my-id.1"})
    assert response.headers["x-request-id"] == "my-id.1"
    assert response.headers["cache-control"] == "no-cache"
    frames = [frame for frame in response.text.split("\n\n") if frame]
    first = json.loads(frames[0].removeprefix("data: "))
    shared = {name: first[name] for name in ("id", "created", "object", "model", "system_fingerprint")}
    assert shared["id"].startswith("cmpl-")
    assert (shared["object"], shared["model"], shared["system_fingerprint"]) == ("text_completion", "toy", "fp_fake")

    def chunk(text: str, reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return {**shared, "choices": [choice]}

    assert [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]] == [
        chunk("ab", None),
        chunk("€", "stop"),
    ]
    assert frames[-1] == "data: [DONE]"
    assert response.text.endswith("data: [DONE]\n\n")


def test_replies_and_chunks_have_the_declared_shape(server: RunningServer) -> None:
    shape = TypeAdapter(Completion)
    options = {"include_usage": True}
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 20, "speculation": {"report": True}}
    replies = [server.post(**body).json(), *read_stream(server, **body, stream_options=options)]
    for reply in replies:
        assert shape.validate_python(reply, strict=True) == reply
        assert set(reply) <= set(Completion.__annotations__)
        for choice in reply["choices"]:
            assert set(choice) <= set(CompletionChoice.__annotations__)


def test_tokens_accepted_in_one_step_are_one_chunk(server: RunningServer) -> None:
    events = read_stream(server, prompt=script(say="x" * 20, per_step=5, delay=0.05), max_tokens=20)
    assert [event["choices"][0]["text"] for event in events] == ["xxxxx"] * 4
    assert events[-1]["choices"][0]["finish_reason"] == "length"


def test_no_chunk_ends_inside_a_character(server: RunningServer) -> None:
    text = "né€😀" * 4
    prompt = script(say=text, per_step=1, delay=0.002)
    events = read_stream(server, prompt=prompt, max_tokens=100)
    pieces = [event["choices"][0]["text"] for event in events]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    cut = server.post(prompt=prompt, max_tokens=5).json()
    assert cut["choices"][0]["text"] == "né\ufffd"


@pytest.mark.parametrize("per_step", [1, 4, 30])
def test_a_stop_string_cuts_the_text_and_the_count_exactly(server: RunningServer, per_step: int) -> None:
    prompt = script(say="one two END three", per_step=per_step)
    body = {"prompt": prompt, "stop": ["ND t", "zzz", "END"], "max_tokens": 40}
    plain = server.post(**body).json()
    nothing = {"logprobs": None, "prompt_logprobs": None}
    assert plain["choices"][0] == {"index": 0, "text": "one two ", "finish_reason": "stop", **nothing}
    assert plain["usage"]["completion_tokens"] == len("one two END")
    events = read_stream(server, **body, stream_options={"include_usage": True})
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "one two "
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["usage"] == plain["usage"]


def test_text_held_back_for_a_stop_string_that_never_comes_is_sent(server: RunningServer) -> None:
    reply = server.post(prompt=script(say="almost EN"), stop="END", max_tokens=40).json()
    assert reply["choices"][0]["text"] == "almost EN"
    assert reply["usage"]["completion_tokens"] == len("almost EN") + 1  # the end token counts


def test_min_tokens_holds_off_stop_strings(server: RunningServer) -> None:
    reply = server.post(prompt=script(say="a.b.c.d"), stop=".", min_tokens=3, max_tokens=40).json()
    assert reply["choices"][0]["text"] == "a.b"


def test_stop_token_ids_and_ignore_eos_are_honoured(server: RunningServer) -> None:
    reply = server.post(prompt=script(say="abc"), stop_token_ids=[ord("c")], max_tokens=40).json()
    nothing = {"logprobs": None, "prompt_logprobs": None}
    assert reply["choices"][0] == {"index": 0, "text": "ab", "finish_reason": "stop", **nothing}
    reply = server.post(prompt=script(say="abc"), ignore_eos=True, max_tokens=40).json()
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("length", 40)


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("hi", ["hi"]),
        (["hi", "yo"], ["hi", "yo"]),
        ([104, 105], ["hi"]),
        ([[104, 105], [121, 111]], ["hi", "yo"]),
    ],
)
def test_every_prompt_form_gives_the_same_reply_and_echo(server: RunningServer, prompt: Any, texts: list[str]) -> None:
    reply = server.post(prompt=prompt, echo=True, seed=3, max_tokens=8).json()
    assert [choice["index"] for choice in reply["choices"]] == list(range(len(texts)))
    for choice, text in zip(reply["choices"], texts, strict=True):
        assert choice["text"].startswith(text)
        assert len(choice["text"]) == len(text) + 8
    assert reply["usage"]["prompt_tokens"] == 2 * len(texts)
    assert (
        reply["choices"][0]["text"]
        == server.post(prompt="hi", echo=True, seed=3, max_tokens=8).json()["choices"][0]["text"]
    )


def test_choices_have_their_own_seeds_and_streams_interleave_them(server: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": ["a", "b"], "n": 2, "seed": 11, "max_tokens": 30}
    plain = server.post(**body).json()
    texts = [choice["text"] for choice in plain["choices"]]
    assert len(set(texts)) == 4
    assert [choice["text"] for choice in server.post(**body).json()["choices"]] == texts
    usage = plain["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 120, 122)
    streamed = ["", "", "", ""]
    for event in read_stream(server, **body):
        streamed[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert streamed == texts
    assert server.post(prompt="a", seed=11, max_tokens=30).json()["choices"][0]["text"] == texts[0]


def test_without_a_seed_replies_differ(server: RunningServer) -> None:
    texts = {server.post(prompt="a", max_tokens=30).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_continuous_usage_counts_up_chunk_by_chunk(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = read_stream(
        server, prompt=script(say="x" * 9, per_step=3, delay=0.05), max_tokens=9, stream_options=options
    )
    assert [event["usage"]["completion_tokens"] for event in events] == [3, 6, 9, 9]
    assert events[-1]["choices"] == []


def test_a_report_of_speculation_is_added_when_asked_for(server: RunningServer) -> None:
    body: dict[str, Any] = {
        "prompt": script(say="x" * 13, per_step=3),
        "speculation": {"report": True},
        "max_tokens": 13,
    }
    report = server.post(**body).json()["choices"][0]["speculation"]
    assert report["method"] == "spine"
    assert report["steps"] == 5
    assert report["acceptance_length"] == 13 / 5
    assert report["accepted_by_source"] == {"context": 8}
    assert report["foretold_by_source"] == {"context": 8, "ngram": 1}
    assert read_stream(server, **body)[-1]["choices"][0]["speculation"]["steps"] == 5


def test_plain_decoding_reports_an_acceptance_length_of_exactly_1(server: RunningServer) -> None:
    body = {"prompt": script(per_step=1), "speculation": {"report": True}, "max_tokens": 7}
    assert server.post(**body).json()["choices"][0]["speculation"]["acceptance_length"] == 1.0


def test_a_silent_stream_carries_comments(server: RunningServer) -> None:
    response = server.post(prompt=script(say="ab", per_step=1, delay=0.5), max_tokens=2, stream=True)
    assert ": keep-alive\n\n" in response.text
    assert response.text.endswith("data: [DONE]\n\n")


def test_a_client_that_leaves_a_stream_frees_its_requests(server: RunningServer) -> None:
    body = {"prompt": script(per_step=1, delay=0.01), "max_tokens": 4000, "n": 2, "stream": True}
    with server.http.stream("POST", "/v1/completions", json=body) as reply:
        pieces = reply.iter_raw()  # kept: dropping it would close the connection
        next(pieces)
        assert (reply.status_code, server.served.client.num_open) == (200, 2)
    wait_until(lambda: server.served.client.num_open == 0)
    assert server.post(prompt="still there", max_tokens=3).status_code == 200


def test_a_plain_client_that_leaves_while_it_waits_frees_its_request(server: RunningServer) -> None:
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(
            "/v1/completions",
            json={"prompt": script(per_step=1, delay=0.01), "max_tokens": 4000},
            timeout=0.3,
        )
    wait_until(lambda: server.served.client.num_open == 0)


def test_a_slow_reader_delays_nobody_and_gets_everything(server: RunningServer) -> None:
    body = json.dumps({"prompt": script(per_step=1), "max_tokens": 4000, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    with socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        slow.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        received = slow.recv(100)
        assert server.post(prompt="quick", max_tokens=3).status_code == 200, "before the slow one reads on"
        wait_until(lambda: server.served.client.num_open == 0)
        while piece := slow.recv(65536):
            received += piece
    texts = re.findall(rb'"text":"((?:[^"\\]|\\.)*)"', received)
    assert sum(len(json.loads(b'"' + text + b'"')) for text in texts) == 4000
    assert received.rstrip(b"\r\n0").endswith(b"data: [DONE]")


def test_many_calls_at_once_get_their_own_replies(server: RunningServer) -> None:
    results: dict[int, str] = {}

    def call(number: int) -> None:
        prompt = script(say=f"reply {number} " * 20, per_step=number % 5 + 1)
        results[number] = server.post(prompt=prompt, max_tokens=500, stop="20 20").json()["choices"][0]["text"]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"reply {number} " * 20 for number in range(24)}


def test_an_engine_that_rejects_or_fails_answers_in_openai_shape(server: RunningServer) -> None:
    for stream in (False, True):
        rejected = server.post(prompt=script(reject="no such thing"), stream=stream)
        assert rejected.status_code == 400
        assert rejected.json()["error"] == {
            "message": "no such thing",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "refused",
        }
        failed = server.post(prompt=script(fail="secret path /root"), stream=stream)
        assert failed.status_code == 500
        assert "secret" not in failed.text
        told = server.post(prompt=script(fail="The model is broken.", code="broken_logits"), stream=stream)
        assert (told.status_code, told.json()["error"]["code"]) == (500, "broken_logits")
        assert told.json()["error"]["message"] == "The model is broken."
        assert failed.json()["error"]["code"] == "internal_error"
