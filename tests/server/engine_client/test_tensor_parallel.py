"""A worker whose model is divided: when a process that holds a part of it dies, its replies go on at the next one."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from server.config import ServerSettings
from server.engine_client.processes.worker_process import WORKER_COMMAND
from tests.server.servers import COMPILING, FAST_RESTARTS, PATIENCE, reply_of, running_server, wait_until

BODIES = [
    {"prompt": "def add(", "max_tokens": 400, "temperature": temperature, "seed": 5, "ignore_eos": True}
    for temperature in (0, 0.9)
]


def rank_of(worker: int) -> int:
    """The process of the other rank, which the worker started."""
    children = [pid for path in Path(f"/proc/{worker}/task").glob("*/children") for pid in path.read_text().split()]
    (rank,) = (pid for pid in children if b"decoding.worker.shard" in Path(f"/proc/{pid}/cmdline").read_bytes())
    return int(rank)


def has_ended(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.slow
def test_replies_go_on_when_a_rank_is_killed_and_no_rank_outlives_its_worker() -> None:
    settings = ServerSettings(drain_seconds=2, tensor_parallel_size=2)
    with running_server(settings, WORKER_COMMAND, policy=FAST_RESTARTS) as server, ThreadPoolExecutor(2) as pool:
        worker = server.wait_for("ready", COMPILING)["worker_pid"]
        rank = rank_of(worker)

        def ask(body: object) -> object:
            return reply_of(server.http.post("/v1/completions", json=body, timeout=COMPILING))

        expected = [ask(body) for body in BODIES]
        replies = [pool.submit(ask, body) for body in BODIES]
        requests = server.served.client.workers[0].requests
        wait_until(lambda: any(ticket.num_tokens > 20 for ticket in requests), PATIENCE)
        os.kill(rank, signal.SIGKILL)
        assert [reply.result(COMPILING) for reply in replies] == expected
        health = server.get("/health").json()
        assert health["restarts"] == 1
        assert server.metric("gander_resumed_requests_total") > 0
        worker, rank = health["worker_pid"], rank_of(health["worker_pid"])
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: has_ended(rank), PATIENCE)
