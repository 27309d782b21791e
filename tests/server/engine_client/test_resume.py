"""Replies over the death of their worker, with the real one: complete, and equal to those that nothing disturbed.

GANDER_TEST_KILLS: how often a worker is killed, by default a few times; GANDER_TEST_SEED: of the moments.
"""

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.server.servers import FAST_RESTARTS, RunningServer, reply_of, running_server, wait_until

PATIENCE = 600.0  # seconds, on a machine that has other things to do
NUM_KILLS = int(os.environ.get("GANDER_TEST_KILLS", "2"))
MOMENTS = random.Random(os.environ.get("GANDER_TEST_SEED", "16"))
PROMPT = "class Stack:\n    def push(self, item):\n        self.items.append(item)\n\n    def pop(self):\n"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 60},
        "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 6, "maxItems": 12},
    },
    "required": ["name", "sizes"],
}
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "seed": 5}
ASKED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0, "ignore_eos": True},
    "sampled": SAMPLED | {"ignore_eos": True},
    "grammar": SAMPLED | {"structured_outputs": {"json": SCHEMA}},
    "two choices": SAMPLED | {"n": 2, "ignore_eos": True},
    "logprobs": SAMPLED | {"logprobs": 3, "ignore_eos": True},
    "stop": {"temperature": 0, "ignore_eos": True},  # and one of its own last words
    "penalties": SAMPLED | {"frequency_penalty": 0.5, "repetition_penalty": 1.2, "bad_words": ["return"], "echo": True},
    "prediction": {"temperature": 0, "prediction": {"type": "content", "content": PROMPT * 3}, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def real() -> Iterator[RunningServer]:
    policy = replace(FAST_RESTARTS, has_standby=True)
    with running_server(ServerSettings(drain_seconds=2), WORKER_COMMAND, policy=policy) as server:
        yield server


def ask(server: RunningServer, body: dict[str, Any]) -> Any:
    body = {"prompt": PROMPT, "max_tokens": 160} | body
    return reply_of(server.http.post("/v1/completions", json=body, timeout=PATIENCE))


def test_replies_are_as_if_nothing_had_been_whenever_their_worker_is_killed(real: RunningServer) -> None:
    bodies = [body | {"stream": is_streamed} for body in ASKED.values() for is_streamed in (False, True)]
    words = ask(real, ASKED["stop"])[0][0]["text"].split()
    for body in bodies[2 * list(ASKED).index("stop") :][:2]:
        body["stop"] = [next(word for word in words[len(words) // 2 :] if word not in words[: len(words) // 2])]
    expected = [ask(real, body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        started = time.monotonic()
        assert list(pool.map(lambda body: ask(real, body), bodies)) == expected
        seconds = time.monotonic() - started
        for number in range(1, NUM_KILLS + 1):
            pid = real.wait_for("ready", PATIENCE)["worker_pid"]
            replies = [pool.submit(ask, real, body) for body in bodies]
            time.sleep(MOMENTS.uniform(0.02, 0.9) * seconds)
            os.kill(pid, signal.SIGKILL)
            assert [reply.result(PATIENCE) for reply in replies] == expected
            wait_until(lambda number=number: real.get("/health").json()["restarts"] == number, PATIENCE)  # type: ignore[misc]
    assert real.metric("gander_resumed_requests_total") > 0


@pytest.mark.slow
def test_two_workers_give_the_replies_of_one_also_where_one_of_them_is_killed(real: RunningServer) -> None:
    bodies = [body | {"stream": number % 2 == 0, "max_tokens": 240} for number, body in enumerate(ASKED.values())]
    settings = ServerSettings(drain_seconds=2, workers=2)
    with running_server(settings, WORKER_COMMAND) as pair, ThreadPoolExecutor(len(bodies)) as pool:
        expected = list(pool.map(lambda body: ask(real, body), bodies))
        workers = pair.served.client.workers
        wait_until(lambda: all(worker.status.state == "ready" for worker in workers), PATIENCE)
        replies = [pool.submit(ask, pair, body) for body in bodies]
        wait_until(
            lambda: all(any(ticket.num_tokens > 20 for ticket in worker.requests) for worker in workers), PATIENCE
        )
        os.kill(pair.get("/health").json()["workers"][1]["worker_pid"], signal.SIGKILL)
        assert [reply.result(PATIENCE) for reply in replies] == expected
        assert (workers[0].status.restarts, pair.get("/ready").status_code) == (0, 200)
        assert pair.metric("gander_resumed_requests_total") > 0


def test_a_session_accepts_as_much_after_it_was_kept_as_before(real: RunningServer) -> None:
    def accepted(session_id: str, seed: int = 9) -> int:
        body = {"prompt": PROMPT, "max_tokens": 96, "ignore_eos": True, "session_id": session_id}
        asked = {"speculation": {"method": "stand", "max_nodes": 24, "report": True}}
        report = real.post(**body, **asked, **SAMPLED | {"seed": seed}).json()["choices"][0]["speculation"]
        return int(report["accepted"])

    for seed in range(2):
        accepted("warm", seed)
    path = "/v1/sessions/warm/export"
    kept = real.get(path).content
    before = accepted("warm")
    assert real.http.put(path, content=kept).status_code == 204
    after = accepted("warm")
    assert after > accepted("cold"), "nothing was gained by what is remembered"
    assert after == pytest.approx(before, rel=0.05)


def test_what_drafting_remembers_outlives_its_worker(real: RunningServer) -> None:
    def card() -> dict[str, Any]:
        return {each["id"]: each for each in real.get("/v1/sessions").json()["data"]}["kept"]

    def is_kept() -> bool:
        states = real.served.client.workers[0].sessions._copies.states()
        return sum(card()["bytes_by_store"].values()) <= sum(
            each.num_bytes for each in states if each.session_id == "kept"
        )

    for seed in (1, 2):
        ask(real, SAMPLED | {"seed": seed, "session_id": "kept", "speculation": {"method": "stand"}})
    wait_until(is_kept, PATIENCE)
    before, health = card(), real.wait_for("ready", PATIENCE)
    os.kill(health["worker_pid"], signal.SIGKILL)
    wait_until(lambda: real.get("/health").json()["restarts"] > health["restarts"], PATIENCE)
    real.wait_for("ready", PATIENCE)
    after = card()
    assert (after["bytes"], after["bytes_by_store"]) == (before["bytes"], before["bytes_by_store"])
    assert after["bytes"] > 0
