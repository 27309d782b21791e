"""Two workers behind one server: one model, one queue, one set of sessions and metrics, whichever worker runs what."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from server.config import ServerSettings
from server.engine_client.status import EngineStatus
from server.engine_client.summary import status_of
from tests.fake_worker import KV_SLOTS, MAX_RUNNING
from tests.server.servers import PATIENCE, RunningServer, make_model_folder, reply_of, running_server, wait_until


def script(**fields: Any) -> str:
    return json.dumps(fields)


def settings_for(folder: Path, **fields: Any) -> ServerSettings:
    return ServerSettings(model=str(folder), drain_seconds=5, workers=2, **fields)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = settings_for(make_model_folder(tmp_path_factory.mktemp("pair") / "toy"), max_waiting=4)
    with running_server(settings) as server:
        yield server


def loads(server: RunningServer) -> list[int]:
    """Open requests of each worker."""
    return [card["open_requests"] for card in server.get("/health").json()["workers"]]


def kill(server: RunningServer, number: int) -> None:
    os.kill(server.get("/health").json()["workers"][number]["worker_pid"], signal.SIGKILL)


def wait_for_both(server: RunningServer) -> None:
    wait_until(lambda: [card["status"] for card in server.get("/health").json()["workers"]] == ["ready"] * 2)


def test_a_server_is_ready_when_all_its_workers_are(pair: RunningServer) -> None:
    health = pair.get("/ready").json()
    assert health["sentence"] == "serving fake with 2 of 2 workers"
    assert [card["status"] for card in health["workers"]] == ["ready", "ready"]
    assert len({card["worker_pid"] for card in health["workers"]}) == 2
    assert (health["engine"]["kv_slots"], health["engine"]["max_running"]) == (2 * KV_SLOTS, 2 * MAX_RUNNING)


def test_what_one_worker_cannot_serve_with_stops_a_start_and_later_costs_that_worker_alone() -> None:
    serving = EngineStatus(state="ready", sentence="serving fake", worker_pid=7)
    failed = EngineStatus(state="failed", sentence="no memory", last_error="no memory", restarts=1)
    assert status_of([serving, EngineStatus()], have_all_served=False).state == "loading"
    assert status_of([serving, failed], have_all_served=False).sentence == "worker 1 of 2: no memory"
    later = status_of([failed, serving], have_all_served=True)
    assert (later.state, later.sentence) == ("ready", "serving fake with 1 of 2 workers")
    assert (later.restarts, later.last_error, later.worker_pid) == (1, "no memory", 7)
    assert status_of([failed, failed], have_all_served=True).state == "failed"


def test_the_choices_of_a_call_run_together_and_other_calls_elsewhere(pair: RunningServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        many = pool.submit(pair.post, prompt=script(delay=0.05, per_step=1), n=6, max_tokens=20)
        wait_until(lambda: sum(loads(pair)) == 6)
        assert sorted(loads(pair)) == [0, 6]
        one = pool.submit(pair.post, prompt=script(delay=0.05, per_step=1), max_tokens=10)
        wait_until(lambda: sorted(loads(pair)) == [1, 6])
        assert [reply.result(PATIENCE).status_code for reply in (many, one)] == [200, 200]
    assert loads(pair) == [0, 0]


def test_a_client_that_leaves_frees_what_it_held_at_whichever_worker(pair: RunningServer) -> None:
    body = {"prompt": script(per_step=1, delay=0.01), "max_tokens": 4000, "stream": True}
    with pair.http.stream("POST", "/v1/completions", json=body) as one:
        pieces = [one.iter_raw()]  # kept: dropping it would close the connection
        next(pieces[0])
        with pair.http.stream("POST", "/v1/completions", json=body) as other:
            pieces.append(other.iter_raw())
            next(pieces[1])
            assert loads(pair) == [1, 1]
        wait_until(lambda: sum(loads(pair)) == 1)
    wait_until(lambda: loads(pair) == [0, 0])


def test_a_session_has_one_home_and_takes_what_it_is_along_when_it_moves(pair: RunningServer) -> None:
    home = pair.served.client._router.home
    for _ in range(3):
        assert pair.post(prompt="a" * 50, session_id="mine").status_code == 200
    first = home("", "mine")
    assert first is not None
    kept = pair.served.client.workers[first].sessions.kept
    wait_until(lambda: kept("", "mine"))
    with ThreadPoolExecutor(1) as pool:
        body = {"prompt": script(delay=0.05, per_step=1), "n": 8, "max_tokens": 20, "session_id": "mine"}
        busy = pool.submit(pair.post, **body)
        wait_until(lambda: loads(pair)[first] == 8)
        moved = pair.post(prompt=script(say="a"), session_id="mine")
        assert moved.status_code == 200
        assert home("", "mine") == 1 - first
        assert busy.result(PATIENCE).status_code == 200
    cards = [card for card in pair.get("/v1/sessions").json()["data"] if card["id"] == "mine"]
    assert [card["bytes"] for card in cards] == [100], "both workers have all of it"


def test_a_session_is_deleted_and_replaced_at_every_worker(pair: RunningServer) -> None:
    path = "/v1/sessions/both"
    for number in range(2):
        pair.served.client._router.settle("", "both", number)
        pair.post(prompt="a" * (10 + number), session_id="both")
    exported = pair.get(f"{path}/export").content
    assert pair.http.put(f"{path}/export", content=exported).status_code == 204
    sizes = {card["id"]: card["bytes"] for card in pair.get("/v1/sessions").json()["data"]}
    assert sizes["both"] == 11, "the one of the worker where it was last"
    assert pair.http.delete(path).status_code == 200
    assert pair.http.delete(path).status_code == 404


def test_metrics_are_sums_but_for_what_is_told_of_each_worker(pair: RunningServer) -> None:
    pair.post(prompt="abc", max_tokens=30)
    wait_until(lambda: pair.metric("gander_slots") == 2 * KV_SLOTS)
    page, name = pair.get("/metrics").text, pair.model
    assert page.count("\nvllm:kv_cache_usage_perc{") == page.count("\nvllm:num_requests_running{") == 1
    assert page.count("\ngander_worker_resident_bytes{") == 1
    assert f'gander_worker_ready{{model_name="{name}",worker="0"}} 1.0' in page
    assert f'gander_worker_open_requests{{model_name="{name}",worker="1"}} 0.0' in page


def test_when_a_worker_dies_the_other_goes_on_with_its_requests_and_takes_new_ones(pair: RunningServer) -> None:
    restarts, resumed = (pair.metric(f"gander_{name}_total") for name in ("worker_restarts", "resumed_requests"))
    bodies: list[dict[str, Any]] = [
        {"prompt": script(delay=0.01, per_step=2), "seed": seed, "max_tokens": 120, "stream": seed % 2 == 0, "n": 2}
        for seed in range(4)
    ]
    expected = [reply_of(pair.post(**body)) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        replies = [pool.submit(pair.post, **body) for body in bodies]
        wait_until(lambda: loads(pair) == [4, 4])
        kill(pair, 1)
        wait_until(lambda: loads(pair) == [8, 0])
        assert pair.get("/ready").json()["sentence"] == "serving fake with 1 of 2 workers"
        assert pair.post(prompt=script(say="new")).json()["choices"][0]["text"] == "new"
        assert [reply_of(reply.result(PATIENCE)) for reply in replies] == expected
    wait_for_both(pair)
    assert pair.metric("gander_worker_restarts_total") == restarts + 1
    assert pair.metric("gander_resumed_requests_total") == resumed + 4
    assert [card["restarts"] for card in pair.get("/health").json()["workers"]] == [0, restarts + 1]


def test_a_request_that_kills_its_workers_ends_and_no_other_does(pair: RunningServer) -> None:
    body: dict[str, Any] = {"prompt": script(delay=0.01, per_step=1), "seed": 3, "max_tokens": 300}
    expected = reply_of(pair.post(**body))
    restarts = pair.metric("gander_worker_restarts_total")
    with ThreadPoolExecutor(5) as pool:
        replies = [pool.submit(pair.post, **body) for _ in range(4)]
        wait_until(lambda: sum(loads(pair)) == 4)
        bomb = pair.post(prompt=script(crash_after=2), max_tokens=100)
        assert (bomb.status_code, bomb.json()["error"]["code"]) == (503, "worker_died")
        assert [reply_of(reply.result(PATIENCE)) for reply in replies] == [expected] * 4
    wait_for_both(pair)
    assert pair.metric("gander_worker_restarts_total") - restarts in (2, 3)


def test_the_queue_is_one_and_its_limits_are_of_all_workers(pair: RunningServer) -> None:
    with ThreadPoolExecutor(1) as pool:
        full = pool.submit(pair.post, prompt=script(delay=0.3, per_step=5), n=2 * MAX_RUNNING + 4, max_tokens=5)
        wait_until(lambda: sum(loads(pair)) == 2 * MAX_RUNNING + 4)
        refused = pair.post(prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert full.result(PATIENCE).status_code == 200


def test_a_stop_waits_for_what_runs_at_every_worker_and_leaves_none_behind(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server, ThreadPoolExecutor(2) as pool:
        pids = [card["worker_pid"] for card in server.get("/health").json()["workers"]]
        replies = [pool.submit(server.post, prompt=script(delay=0.05, per_step=1), max_tokens=20) for _ in pids]
        wait_until(lambda: loads(server) == [1, 1])
    assert [reply.result(1).status_code for reply in replies] == [200, 200]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
