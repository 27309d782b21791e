"""Requests and tokens a minute: buckets by a clock of the test's own, headers and refusals through HTTP."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.http.errors import ApiError
from server.http.keys import KeyRing, KeyTerms
from server.http.rate_limits import Allowance, duration
from tests.fake_worker import MAX_RUNNING
from tests.server.servers import RunningServer, make_model_folder, running_server

KEYS = """
few requests_per_minute=3
admin busy weight=2.5 tokens_per_minute=40 requests_per_minute=100
talker tokens_per_minute=60 requests_per_minute=100
free
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path_factory.mktemp("models") / "toy")
    file = folder / "keys"
    file.write_text(KEYS)
    with running_server(ServerSettings(model=str(folder), drain_seconds=2, api_key_file=str(file))) as running:
        yield running


def post(server: RunningServer, key: str, path: str = "/v1/completions", **body: object) -> httpx.Response:
    asked = {"max_tokens": 1} | body | ({} if "messages" in body else {"prompt": "a"} | body)
    return server.http.post(path, json=asked, headers={"Authorization": f"Bearer {key}"})


def test_requests_come_back_evenly() -> None:
    clock = Clock()
    allowance = Allowance(KeyTerms(requests_per_minute=6), clock)
    for _ in range(6):
        allowance.take_request()
    with pytest.raises(ApiError) as caught:
        allowance.take_request()
    assert (caught.value.status, caught.value.code, caught.value.retry_after) == (429, "rate_limit_exceeded", 10)
    clock.now += 10
    allowance.take_request()
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "0"
    clock.now += 1000
    assert allowance.headers()["x-ratelimit-remaining-requests"] == "6"


def test_a_reply_is_not_cut_and_what_it_overdraws_is_waited_for() -> None:
    clock = Clock()
    allowance = Allowance(KeyTerms(tokens_per_minute=60), clock)
    allowance.take_request()
    allowance.take_prompt(50)
    allowance.take_reply(30)
    with pytest.raises(ApiError) as caught:
        allowance.take_request()
    assert caught.value.retry_after == 21
    clock.now += 21
    allowance.take_request()


def test_a_prompt_longer_than_a_minutes_tokens_waits_for_all_of_them() -> None:
    clock = Clock()
    allowance = Allowance(KeyTerms(tokens_per_minute=60), clock)
    allowance.take_prompt(1)
    with pytest.raises(ApiError):
        allowance.take_prompt(600)
    clock.now += 1
    allowance.take_prompt(600)


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.0123, "13ms"), (8.64, "8.64s"), (60, "1m0s"), (90, "1m30s")]
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_key_has_its_requests_and_headers_say_what_is_left(limited: RunningServer) -> None:
    left = []
    for stream in (False, True, False):
        reply = post(limited, "few", stream=stream)
        assert reply.status_code == 200
        left.append(reply.headers["x-ratelimit-remaining-requests"])
        assert reply.headers["x-ratelimit-limit-requests"] == "3"
        assert "x-ratelimit-limit-tokens" not in reply.headers
    assert left == ["2", "1", "0"]
    reply = post(limited, "few", "/v1/chat/completions")
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(reply.headers["retry-after"]) <= 20
    assert reply.headers["x-ratelimit-remaining-requests"] == "0"
    assert reply.headers["x-request-id"]
    assert limited.http.get("/v1/models", headers={"Authorization": "Bearer few"}).status_code == 200
    assert "x-ratelimit-limit-requests" not in post(limited, "free").headers


def test_a_key_has_its_tokens_of_prompts_and_replies(limited: RunningServer) -> None:
    reply = post(limited, "busy", prompt="a" * 10, max_tokens=25)
    assert reply.status_code == 200
    assert (reply.headers["x-ratelimit-limit-tokens"], reply.headers["x-ratelimit-limit-requests"]) == ("40", "100")
    assert post(limited, "busy", prompt="a" * 8).status_code == 429, "10 and 25 tokens of 40 are gone"


def test_a_prompt_that_the_queue_refuses_costs_no_tokens(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("key tokens_per_minute=1000000\n")
    settings = ServerSettings(
        model=str(make_model_folder(tmp_path / "toy")), drain_seconds=2, api_key_file=str(file), max_waiting=0
    )
    with running_server(settings) as running:
        body = {
            "prompt": json.dumps({"say": "z" * 100, "delay": 0.5, "per_step": 1}),
            "n": MAX_RUNNING,
            "max_tokens": 100,
            "stream": True,
        }
        headers = {"Authorization": "Bearer key"}
        with running.http.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            next(stream.iter_bytes())
            left = int(stream.headers["x-ratelimit-remaining-tokens"])
            reply = post(running, "key", prompt="a" * 2000)
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "queue_full")
    assert int(reply.headers["x-ratelimit-remaining-tokens"]) > left - 1500


def test_messages_count_against_a_keys_limits(limited: RunningServer) -> None:
    body = {"max_tokens": 30, "messages": [{"role": "user", "content": "a"}]}
    reply = post(limited, "talker", "/v1/messages", **body)
    assert reply.status_code == 200, reply.text
    assert (reply.json()["usage"]["input_tokens"], reply.json()["usage"]["output_tokens"]) == (21, 30)
    assert (reply.headers["x-ratelimit-limit-tokens"], reply.headers["x-ratelimit-remaining-requests"]) == ("60", "99")
    reply = post(limited, "talker", "/v1/messages", **body)
    assert (reply.status_code, reply.json()["type"]) == (429, "error"), "9 of 60 tokens are left, and 21 are asked"
    error = reply.json()["error"]
    assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")


def test_a_key_files_terms_are_read_and_mistakes_named(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    ring = KeyRing(None, None, str(file))
    busy, free = ring.find("busy"), ring.find("free")
    assert busy is not None
    assert (busy.is_admin, busy.terms) == (True, KeyTerms(2.5, 100, 40))
    assert free is not None
    assert free.terms == KeyTerms()
    for words in ("weight=0", "weight=nan", "tokens_per_minute=1.5", "speed=2", "weight", "weight=1 weight=2"):
        file.write_text(f"\nsecret {words}\n")
        named = words.partition("=")[0] if words != "speed=2" else "behind a key come"
        with pytest.raises(ConfigError, match=f"line 2: .*{named}") as caught:
            KeyRing(None, None, str(file))
        assert "secret" not in str(caught.value)
