"""The worker's life as clients see it: loading, crashing, coming back, being given up, draining."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.config import ServerSettings
from server.engine_client.processes.restart_policy import RestartPolicy
from tests.fake_worker import KV_SLOTS, MAX_RUNNING
from tests.server.servers import FAST_RESTARTS, PATIENCE, make_model_folder, reply_of, running_server, wait_until

ROOT = Path(__file__).parents[3]


def settings_for(folder: Path, **fields: Any) -> ServerSettings:
    return ServerSettings(model=str(folder), **{"drain_seconds": 2} | fields)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def script(**fields: Any) -> str:
    return json.dumps(fields)


def test_while_the_model_loads_the_port_is_open_and_completions_are_503(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", load_seconds=1.0)
    with running_server(settings_for(folder), state="") as server:
        health, ready = server.get("/health"), server.get("/ready")
        assert health.status_code == 200
        assert health.json()["status"] == "loading"
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "2")
        refused = server.post(prompt="a")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert refused.json()["error"]["code"] == "engine_loading"
        wait_until(lambda: "loading part" in server.get("/ready").json()["sentence"])
        wait_until(lambda: server.get("/ready").status_code == 200)
        assert server.post(prompt="a").status_code == 200
        engine = server.get("/ready").json()["engine"]
        assert (engine["model"], engine["max_model_len"]) == ("fake", 4096)


def test_what_is_still_being_compiled_is_told_and_requests_are_served_meanwhile(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", compiling=["auto", "spine"])
    with running_server(settings_for(folder), state="") as server:
        assert server.wait_for("ready")["compiling"] == ["auto", "spine"]
        assert server.get("/ready").json()["compiling"] == ["auto", "spine"]
        assert server.post(prompt="a").status_code == 200
        wait_until(lambda: server.get("/health").json()["compiling"] == [])


def test_a_request_that_two_workers_die_of_fails_and_the_next_one_is_served(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        first_pid = server.get("/health").json()["worker_pid"]
        crashed = server.post(prompt=script(crash_after=3, delay=0.02))
        assert (crashed.status_code, crashed.json()["error"]["code"]) == (503, "worker_died")
        assert "Two worker processes died while they ran this request" in crashed.json()["error"]["message"]
        assert crashed.headers["retry-after"] == "1"
        server.wait_for("ready")
        streamed = server.post(prompt=script(crash_after=3, delay=0.02), stream=True)
        frames = streamed.text.split("\n\n")
        assert json.loads(frames[-3].removeprefix("data: "))["error"]["code"] == "worker_died"
        assert frames[-2] == "data: [DONE]"
        health = server.wait_for("ready")
        assert health["restarts"] == 4
        assert health["last_error"].endswith("exited with status 3")
        assert health["worker_pid"] != first_pid
        assert server.post(prompt="a").status_code == 200
        assert server.metric("gander_worker_restarts_total") == 4
        assert server.metric("gander_resumed_requests_total") == 2
        assert server.served.client.num_open == 0


def test_a_request_that_breaks_whole_steps_ends_alone_and_those_beside_it_are_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": script(per_step=2, delay=0.01), "seed": seed, "max_tokens": 800, "stream": seed % 2 == 0}
        for seed in range(6)
    ]
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server, ThreadPoolExecutor(12) as pool:
        expected = list(pool.map(lambda body: reply_of(server.post(**body)), bodies))
        replies = [pool.submit(server.post, **body) for body in bodies]
        wait_until(lambda: server.served.client.num_open == len(bodies))
        bomb = pool.submit(server.post, prompt=script(crash_after=2), max_tokens=100)
        wait_until(lambda: server.get("/health").json()["restarts"] >= 2)
        late = pool.submit(server.post, prompt=script(say="late"))
        assert [reply_of(reply.result(60)) for reply in replies] == expected
        ended = bomb.result(60)
        assert (ended.status_code, ended.json()["error"]["code"]) == (503, "worker_died")
        assert "Three worker processes died while they ran this request" in ended.json()["error"]["message"]
        assert late.result(60).status_code in (200, 503), "it may come while no worker is ready"
        assert server.wait_for("ready", 60)["restarts"] == 3
        assert server.served.client.num_open == 0


def test_a_client_that_leaves_while_another_request_is_tried_alone_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server, ThreadPoolExecutor(2) as pool:
        slow = pool.submit(server.post, prompt=script(crash_after=2, per_step=1, delay=0.3))
        body = {"prompt": script(per_step=1, delay=0.01), "max_tokens": 4000, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as reply:
            pieces = reply.iter_raw()  # kept: dropping it would close the connection
            next(pieces)
            wait_until(lambda: server.get("/health").json()["restarts"] >= 2)
        assert slow.result(60).status_code == 503
        wait_until(lambda: server.served.client.num_open == 0)


def test_running_and_waiting_replies_go_on_after_a_crash_as_if_it_had_not_been(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    bodies: list[dict[str, Any]] = [
        {"prompt": script(delay=0.01, per_step=2), "seed": 7, "max_tokens": 90, "stream": is_streamed, **fields}
        for is_streamed in (False, True)
        for fields in ({}, {"logprobs": 2, "n": 2}, {"stop": ["qz", "b"]}, {"echo": True, "max_tokens": 0})
    ]
    with running_server(settings_for(folder)) as server, ThreadPoolExecutor(len(bodies)) as pool:

        def call(body: dict[str, Any]) -> Any:
            return reply_of(server.post(**body))

        expected = list(pool.map(call, bodies))
        replies = [pool.submit(call, body) for body in bodies]
        wait_until(lambda: server.served.client.num_open >= len(bodies) - 2)
        crashed = server.post(prompt=script(crash_once=3, say="all the same", delay=0.02))
        assert [reply.result(PATIENCE) for reply in replies] == expected
        assert crashed.json()["choices"][0]["text"] == "all the same"
        assert crashed.json()["choices"][0]["finish_reason"] == "stop"
        assert server.get("/health").json()["restarts"] == 1


@pytest.mark.parametrize("free", [KV_SLOTS, KV_SLOTS - 1000])
def test_the_worker_after_has_the_room_that_was_announced_or_it_is_told_that_it_has_less(
    tmp_path: Path, free: int, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_model_folder(tmp_path / "toy", free_slots=free)
    with running_server(settings_for(folder)) as server:
        assert server.post(prompt=script(crash_once=3, per_step=1), max_tokens=5).status_code == 200
        health = server.wait_for("ready")
        assert (health["engine"]["kv_slots"], health["restarts"]) == (free, 1)
    told = f"with room for {free:,} tokens instead of {KV_SLOTS:,}: memory is short"
    assert (told in health["sentence"], told in caplog.text) == (free < KV_SLOTS,) * 2


def test_traced_steps_are_numbered_on_over_a_crash(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        body = {"prompt": script(crash_once=3, per_step=2), "max_tokens": 10, "speculation": {"trace": True}}
        trace = server.post(**body).json()["choices"][0]["trace"]
        assert [step["step"] for step in trace["steps"]] == [1, 2, 3, 4, 5]


def test_a_client_that_leaves_while_there_is_no_worker_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    with running_server(settings_for(folder)) as server:
        make_model_folder(folder, load_seconds=2.0)
        body = {"prompt": script(crash_once=3, per_step=1, delay=0.01), "max_tokens": 4000, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as reply:
            pieces = reply.iter_raw()  # kept: dropping it would close the connection
            next(pieces)
            server.wait_for("restarting")
            assert server.served.client.num_open == 1
        wait_until(lambda: server.served.client.num_open == 0)
        assert server.get("/health").json()["status"] == "restarting"
        server.wait_for("ready")
        assert server.metric("gander_resumed_requests_total") == 0


def test_a_worker_that_computes_in_another_way_does_not_go_on_with_what_was_begun(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    with running_server(settings_for(folder)) as server:
        make_model_folder(folder, fingerprint="fp_other")
        begun = server.post(prompt=script(crash_once=3, per_step=1))
        assert (begun.status_code, begun.json()["error"]["code"]) == (503, "worker_died")
        assert "computes in another way" in begun.json()["error"]["message"]
        server.wait_for("ready")
        assert server.post(prompt="a").json()["system_fingerprint"] == "fp_other"


def test_a_worker_that_is_stopped_is_not_ready_until_it_goes_on(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        pid = server.get("/health").json()["worker_pid"]
        os.kill(pid, signal.SIGSTOP)
        health = server.wait_for("silent")
        assert "nothing was heard of the worker" in health["sentence"]
        refused = server.post(prompt="a")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_silent")
        assert server.get("/ready").status_code == 503
        os.kill(pid, signal.SIGCONT)
        assert server.wait_for("ready")["worker_pid"] == pid
        assert server.post(prompt="a").status_code == 200


def test_a_process_stands_by_and_takes_the_place_of_a_worker_that_died(tmp_path: Path) -> None:
    policy, others = replace(FAST_RESTARTS, has_standby=True), child_pids()
    with running_server(settings_for(make_model_folder(tmp_path / "toy")), policy=policy) as server:
        pids = [server.get("/health").json()["worker_pid"]]
        for number in (1, 2):
            waiting = wait_until(lambda: child_pids() - others - {pids[-1]})
            os.kill(pids[-1], signal.SIGKILL)
            wait_until(lambda count=number: server.get("/health").json()["restarts"] == count)
            pids.append(server.wait_for("ready")["worker_pid"])
            assert {pids[-1]} == waiting
            assert server.post(prompt="a").status_code == 200
        os.kill(wait_until(lambda: child_pids() - others - {pids[-1]}).pop(), signal.SIGKILL)
        os.kill(pids[-1], signal.SIGKILL)
        wait_until(lambda: server.get("/health").json()["restarts"] == 3)
        server.wait_for("ready")
        wait_until(lambda: len(child_pids() - others) == 2)
    assert not (child_pids() - others)


def child_pids() -> set[int]:
    """The worker processes; a server has one for chat templates as well."""
    pids = {int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}
    return {pid for pid in pids if b"tests.fake_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_a_worker_that_stays_silent_is_replaced_and_its_replies_go_on(tmp_path: Path) -> None:
    settings, policy = settings_for(make_model_folder(tmp_path / "toy")), replace(FAST_RESTARTS, worker_timeout=1)
    with running_server(settings, policy=policy) as server, ThreadPoolExecutor(1) as pool:
        pid = server.get("/health").json()["worker_pid"]
        body = {"prompt": script(say="z" * 40, per_step=1, delay=0.02), "max_tokens": 40}
        reply = pool.submit(server.post, **body)
        wait_until(lambda: server.served.client.num_open == 1)
        os.kill(pid, signal.SIGSTOP)
        assert reply.result(PATIENCE).json()["choices"][0]["text"] == "z" * 40
        health = server.wait_for("ready")
        assert health["last_error"].startswith(f"worker {pid} was killed: nothing was heard of it")
        assert not is_alive(pid)


def test_a_killed_idle_worker_is_restarted(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        os.kill(server.get("/health").json()["worker_pid"], signal.SIGKILL)
        wait_until(lambda: server.get("/health").json()["restarts"] == 1)
        server.wait_for("ready")
        assert server.post(prompt="a").status_code == 200


def test_a_worker_that_requests_kill_again_and_again_is_started_again_and_again(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        for requests in range(1, 2 * FAST_RESTARTS.attempts):
            assert server.post(prompt=script(crash_after=1)).status_code == 503
            wait_until(lambda deaths=2 * requests: server.get("/health").json()["restarts"] == deaths)
            server.wait_for("ready")
        assert server.post(prompt="a").status_code == 200


def test_a_worker_that_broke_is_replaced_though_its_process_lingers_and_its_replies_go_on(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server, ThreadPoolExecutor(1) as pool:
        pid = server.get("/health").json()["worker_pid"]
        other = pool.submit(server.post, prompt=script(say="z" * 40, per_step=1, delay=0.02), max_tokens=40)
        wait_until(lambda: server.served.client.num_open == 1)
        broke = server.post(prompt=script(break_once=3, say="all the same"))
        assert broke.json()["choices"][0]["text"] == "all the same"
        assert other.result(PATIENCE).json()["choices"][0]["text"] == "z" * 40
        health = server.wait_for("ready")
        assert (health["restarts"], health["last_error"]) == (1, f"worker {pid} gave up: the engine broke")
        assert not is_alive(pid)


def test_a_request_that_failed_by_itself_is_not_run_again_by_the_next_worker(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        failed = server.post(prompt=script(fail="the grammar failed", code="broken_part"))
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "broken_part")
        os.kill(server.get("/health").json()["worker_pid"], signal.SIGKILL)
        wait_until(lambda: server.get("/health").json()["restarts"] == 1)
        server.wait_for("ready")
        assert server.metric("gander_resumed_requests_total") == 0


def test_a_worker_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", crash_on_load=True)
    with running_server(settings_for(folder), state="failed") as server:
        health = server.get("/health")
        assert health.status_code == 503
        assert health.json()["restarts"] == 3
        assert "died 4 times in a row" in health.json()["sentence"]
        assert server.post(prompt="a").status_code == 503


def test_a_model_that_cannot_be_served_is_not_tried_again(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", load_failed="state-space layers are not served")
    with running_server(settings_for(folder), state="failed") as server:
        assert server.get("/health").json()["sentence"] == "state-space layers are not served"
        assert server.get("/health").json()["restarts"] == 0


def test_a_broken_tokenizer_fails_with_the_reason(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy")
    (folder / "tokenizer.json").write_text("{}")
    with running_server(settings_for(folder), state="failed") as server:
        assert "tokenizer" in server.get("/health").json()["sentence"]


def test_more_requests_than_may_wait_are_429(tmp_path: Path) -> None:
    settings = settings_for(make_model_folder(tmp_path / "toy"), max_running=2, max_waiting=1)
    with running_server(settings) as server:
        body = {"prompt": script(delay=0.01), "max_tokens": 4000, "n": 2, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as running:
            pieces = running.iter_raw()  # kept: dropping it would close the connection
            next(pieces)
            reply = server.post(prompt="a", n=2)
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        assert reply.json()["error"] == {
            "message": "Too many requests are waiting; try again later.",
            "type": "rate_limit_error",
            "param": None,
            "code": "queue_full",
        }
        wait_until(lambda: server.served.client.num_open == 0)
        assert server.post(prompt="a", n=3).status_code == 200


def test_a_server_where_nobody_may_wait_serves_as_many_as_may_run(tmp_path: Path) -> None:
    settings = settings_for(make_model_folder(tmp_path / "toy"), max_running=2, max_waiting=0)
    with running_server(settings) as server:
        body = {"prompt": script(delay=0.01), "max_tokens": 4000, "n": 2, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as running:
            pieces = running.iter_raw()  # kept: dropping it would close the connection
            next(pieces)
            assert server.post(prompt="a").status_code == 429
        wait_until(lambda: server.served.client.num_open == 0)
        assert server.post(prompt="a", n=2, max_tokens=3).status_code == 200


def test_without_a_flag_as_many_requests_run_as_the_worker_says(tmp_path: Path) -> None:
    settings = settings_for(make_model_folder(tmp_path / "toy"), max_waiting=1)
    with running_server(settings) as server:
        reply = server.post(prompt="a", n=MAX_RUNNING + 2, max_tokens=3)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "n")
        assert f"takes {MAX_RUNNING + 1} at most" in reply.json()["error"]["message"]
        body = {"prompt": script(delay=0.01), "max_tokens": 4000, "n": MAX_RUNNING, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body) as running:
            pieces = running.iter_raw()  # kept: dropping it would close the connection
            next(pieces)
            assert server.post(prompt="a", n=2).status_code == 429
            assert server.post(prompt="a", max_tokens=3).status_code == 200


def test_a_request_that_the_worker_has_no_room_for_is_429_like_one_the_client_has_none_for(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        reply = server.post(prompt=script(reject="too many requests are waiting", code="queue_full"))
        assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
        assert (reply.json()["error"]["type"], reply.json()["error"]["code"]) == ("rate_limit_error", "queue_full")


def test_a_grammar_that_the_system_did_not_let_compile_is_503_and_no_fault_of_a_field(tmp_path: Path) -> None:
    with running_server(settings_for(make_model_folder(tmp_path / "toy"))) as server:
        reply = server.post(prompt=script(reject="no process is left", code="grammar_unavailable"))
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert (reply.json()["error"]["param"], reply.json()["error"]["code"]) == (None, "grammar_unavailable")


def test_running_replies_end_when_the_server_stops_and_its_worker_is_gone(tmp_path: Path) -> None:
    reply: dict[str, httpx.Response] = {}
    with running_server(settings_for(make_model_folder(tmp_path / "toy"), drain_seconds=60)) as server:
        pid = server.get("/health").json()["worker_pid"]
        body = {"prompt": script(say="z" * 40, per_step=1, delay=0.02), "max_tokens": 40, "stream": True}
        thread = threading.Thread(target=lambda: reply.update(last=server.post(**body)))
        thread.start()
        wait_until(lambda: server.served.client.num_open == 1)
    thread.join(PATIENCE)
    assert reply["last"].text.count("z") == 40
    assert reply["last"].text.endswith("data: [DONE]\n\n")
    assert not is_alive(pid)


def test_restart_delays_grow_to_a_bound() -> None:
    policy = RestartPolicy(first_delay=0.5, longest_delay=3.0)
    assert [policy.delay(failures) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


RUN_FAKE = """
import sys
from server.config import ServerSettings
from server.process.runner import run
settings = ServerSettings(model=sys.argv[1], port=0, drain_seconds=float(sys.argv[2]), drain_delay=float(sys.argv[3]))
sys.exit(run(settings, (), (sys.executable, "-m", "tests.fake_worker")))
"""


RUN_IN_TERMINAL = "import fcntl, termios\nfcntl.ioctl(0, termios.TIOCSCTTY, 0)" + RUN_FAKE


@contextmanager
def server_process(
    folder: Path, drain_seconds: float, drain_delay: float = 0.0, terminal: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """`gander serve` in front of the scripted worker: the process, its address, its growing output. terminal: a file
    descriptor of the one that the server is started in, which gets its standard output."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", RUN_FAKE if terminal is None else RUN_IN_TERMINAL),
            *(str(folder), str(drain_seconds), str(drain_delay)),
        ],
        stdin=subprocess.DEVNULL if terminal is None else terminal,
        stdout=terminal,
        start_new_session=terminal is not None,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "200"},
    )
    lines: list[str] = []

    def read() -> None:
        assert process.stderr is not None
        lines.extend(process.stderr)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        line = wait_until(lambda: next((line for line in lines if "/ready says when" in line), None))
        yield process, line[line.index("http://") : line.index("/ready")], lines
    finally:
        process.kill()
        process.wait(PATIENCE)
        reader.join(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()


def test_a_model_that_is_not_there_leaves_no_worker_that_had_begun(tmp_path: Path) -> None:
    code = f"import sys, tests.server.engine_client.test_client as own\n{RUN_FAKE.replace('sys.exit(', 'status = (')}"
    code += "print(status, own.child_pids())"
    arguments = [str(tmp_path / "nothing"), "1", "0"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n")[-2] == "1 set()"
    assert "there is no folder" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_then_exits_0_without_a_worker(tmp_path: Path, number: signal.Signals) -> None:
    with (
        server_process(make_model_folder(tmp_path / "toy"), 60) as (process, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        pid = client.get("/health").json()["worker_pid"]
        body = {"prompt": script(say="z" * 30, per_step=1, delay=0.03), "max_tokens": 30, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            process.send_signal(number)
            text += "".join(stream)
        assert text.count("z") == 30
        assert text.endswith("data: [DONE]\n\n")
        assert process.wait(PATIENCE) == 0
    assert not is_alive(pid)
    output = "".join(lines)
    assert "loading part" in output
    assert "curl -N" in output
    assert "zzz" not in output


def test_signals_without_end_and_a_log_leave_nothing_but_sentences(tmp_path: Path) -> None:
    """As when a person keeps pressing Ctrl-C during a stream: the last ones come when the server has stopped."""
    folder = make_model_folder(tmp_path / ("a-name-that-is-long-" * 10))
    with (
        server_process(folder, 60) as (process, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        pid = client.get("/health").json()["worker_pid"]
        assert b"\0TQDM_DISABLE=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
        body = {"prompt": script(per_step=1, delay=0.02), "max_tokens": 4000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            next(reply.iter_text())
            wait_until(lambda: process.send_signal(signal.SIGINT) or process.poll() is not None)
        assert process.poll() == 0
    output = "".join(lines)
    assert "Traceback" not in output
    assert output.count("Stopping at once") == 1
    assert f"Gander is starting {folder.name}; {url}/ready says when.\n" in output
    assert "\r" not in output
    assert " " * 20 not in output


def test_a_context_that_was_lowered_is_told_of_wherever_the_start_is(tmp_path: Path) -> None:
    note = "The context is 4096 of 8192 tokens [all that the memory holds]."
    folder = make_model_folder(tmp_path / "toy", context_note=note)
    with (
        server_process(folder, 1) as (_, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: any("curl -N" in line for line in lines))
        cards = client.get("/v1/models/toy").json(), client.get("/health").json()["engine"]
    for card in cards:
        told = (card["max_model_len"], card["model_context_len"], card["context_note"])
        assert told == (4096, 8192, note)
    assert any(line.startswith(note) for line in lines), "in the report"
    assert any("WARNING" in line and note in line for line in lines), "in the log"
    room = "room for 1,000 tokens; 32 requests run at a time; once full, the worker takes 3.0 GiB"
    assert any(room in line for line in lines)


def test_what_a_start_found_of_exactness_is_told_wherever_the_start_is(tmp_path: Path) -> None:
    reason = "Of a tree [and] its paths, 3 of 10 tokens have other logits. Hidden states differ first behind layer 3."
    found = {
        "device": "cuda:0",
        "is_exact": False,
        "inexact_reason": reason,
        "exact_cost": {"step": 1.125, "prompt": 2.5},
    }
    folder = make_model_folder(tmp_path / "toy", ready=found)
    with (
        server_process(folder, 1) as (_, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        wait_until(lambda: any("curl -N" in line for line in lines))
        engine = client.get("/health").json()["engine"]
    assert (engine["is_exact"], engine["exact_rows"], engine["inexact_reason"]) == (False, 0, reason)
    assert engine["exact_cost"] == {"step": 1.125, "prompt": 2.5}
    assert any(line.startswith(reason) for line in lines)
    cost = "Exact products take 1.12 of the time in steps of 64 tokens, 2.50 in prompts, so they are not used"
    assert any(line.startswith(cost) for line in lines)


def test_a_worker_that_takes_anothers_place_keeps_its_choice_of_products(tmp_path: Path) -> None:
    noted = tmp_path / "noted"
    folder = make_model_folder(tmp_path / "toy", ready={"is_row_exact": True}, exact_noted=str(noted))
    with running_server(settings_for(folder)) as server:
        assert server.post(prompt=script(crash_once=3, per_step=1), max_tokens=5).status_code == 200
        assert server.wait_for("ready")["restarts"] == 1
    assert noted.read_text().split() == ["None", "True"]


def test_a_drain_that_takes_too_long_ends_streams_with_an_error(tmp_path: Path) -> None:
    with (
        server_process(make_model_folder(tmp_path / "toy"), 0.3) as (process, url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        body = {"prompt": script(per_step=1, delay=0.02), "max_tokens": 4000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            process.terminate()
            text += "".join(stream)
        assert '"code":"server_stopping"' in text
        assert text.endswith("data: [DONE]\n\n")
        assert process.wait(PATIENCE) == 0


def test_a_model_that_cannot_be_served_ends_the_process_with_status_1(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path / "toy", load_failed="this model is refused")
    with server_process(folder, 1) as (process, _, lines):
        assert process.wait(PATIENCE) == 1
    wait_until(lambda: any("Stopped: this model is refused" in line for line in lines))


@pytest.mark.parametrize("is_stopped", [False, True], ids=["running", "stopped"])
def test_the_worker_does_not_outlive_a_killed_server(tmp_path: Path, *, is_stopped: bool) -> None:
    with server_process(make_model_folder(tmp_path / "toy"), 1) as (process, url, _):
        pid = wait_until(lambda: httpx.get(f"{url}/health", timeout=PATIENCE).json()["worker_pid"])
        wait_until(lambda: httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 200)
        if is_stopped:
            os.kill(pid, signal.SIGSTOP)
        process.kill()
    wait_until(lambda: not is_alive(pid))


def test_until_its_port_closes_a_server_that_was_told_to_stop_says_503(tmp_path: Path) -> None:
    with (
        server_process(make_model_folder(tmp_path / "toy"), 10, drain_delay=60.0) as (process, url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        body = {"prompt": script(say="z" * 40, per_step=1, delay=0.05), "max_tokens": 40, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            process.terminate()
            wait_until(lambda: httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 503)
            refused = httpx.post(f"{url}/v1/completions", json={"prompt": "a"}, timeout=PATIENCE)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
            assert httpx.get(f"{url}/health", timeout=PATIENCE).json()["status"] == "draining"
            text += "".join(stream)
        assert text.count("z") == 40


def test_its_port_closes_before_its_replies_have_ended(tmp_path: Path) -> None:
    with (
        server_process(make_model_folder(tmp_path / "toy"), 60, drain_delay=0.2) as (process, url, _),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        body = {"prompt": script(say="z" * 60, per_step=1, delay=0.05), "max_tokens": 60, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            process.terminate()
            wait_until(lambda: not is_listening(url))
            text += "".join(stream)
        assert text.count("z") == 60
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("is_ready", [False, True], ids=["while it starts", "when it is idle"])
def test_nobody_connected_is_nobody_to_wait_for(tmp_path: Path, *, is_ready: bool) -> None:
    """A stop waits for routers no longer than they are there. The times are longer than the test."""
    folder = make_model_folder(tmp_path / "toy", load_seconds=0.0 if is_ready else 10 * PATIENCE)
    with server_process(folder, 10 * PATIENCE, 10 * PATIENCE) as (process, url, lines):
        pid = wait_until(lambda: httpx.get(f"{url}/health", timeout=PATIENCE).json()["worker_pid"])
        if is_ready:
            wait_until(lambda: httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 200)
        process.terminate()
        assert process.wait(PATIENCE) == 0
    assert not is_alive(pid)
    assert not is_listening(url)
    assert "Traceback" not in "".join(lines)


def test_a_connection_that_ends_ends_the_wait_for_routers(tmp_path: Path) -> None:
    with server_process(make_model_folder(tmp_path / "toy"), 10 * PATIENCE, 10 * PATIENCE) as (process, url, _):
        with httpx.Client(base_url=url, timeout=PATIENCE) as router:
            wait_until(lambda: router.get("/ready").status_code == 200)
            process.terminate()
            wait_until(lambda: router.get("/ready").status_code == 503)
            assert is_listening(url)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("drain_delay", [0.0, 10 * PATIENCE], ids=["draining", "before the port closes"])
def test_a_second_signal_ends_at_once(tmp_path: Path, drain_delay: float) -> None:
    with (
        server_process(make_model_folder(tmp_path / "toy"), 10 * PATIENCE, drain_delay) as (process, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        pid = client.get("/health").json()["worker_pid"]
        body = {"prompt": script(per_step=1, delay=0.05), "max_tokens": 4000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            process.terminate()
            wait_until(lambda: any("Stopping:" in line for line in lines))
            process.terminate()
            text += "".join(stream)
        assert '"code":"server_stopping"' in text
        assert process.wait(PATIENCE) == 0
    assert not is_alive(pid)
    assert "Traceback" not in "".join(lines)


def test_sighup_reads_the_keys_again_and_ends_no_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice\n")
    monkeypatch.setenv("GANDER_API_KEY_FILE", str(keys))
    with (
        server_process(make_model_folder(tmp_path / "toy"), 5) as (process, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE, headers={"X-Api-Key": "alice"}) as client,
    ):
        wait_until(lambda: client.get("/ready").status_code == 200)
        before = keys.stat().st_mtime_ns
        body = {"prompt": script(per_step=1, delay=0.02), "max_tokens": 60, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            keys.write_text("carol\n")
            os.utime(keys, ns=(before, before))  # so that it seems unchanged
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: any("was read again: 1 keys" in line for line in lines))
            text += "".join(stream)
        assert text.endswith("data: [DONE]\n\n")
        assert client.get("/v1/models").status_code == 401
        assert client.get("/v1/models", headers={"X-Api-Key": "carol"}).status_code == 200
        process.terminate()
        assert process.wait(PATIENCE) == 0


def test_a_terminal_that_closes_drains_the_server_that_was_started_in_it(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with (
        server_process(make_model_folder(tmp_path / "toy"), 30, terminal=theirs) as (process, url, lines),
        httpx.Client(base_url=url, timeout=PATIENCE) as client,
    ):
        os.close(theirs)
        wait_until(lambda: client.get("/ready").status_code == 200)
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: any("no file of API keys" in line for line in lines))
        body = {"prompt": script(say="z" * 60, per_step=1, delay=0.02), "max_tokens": 60, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as reply:
            stream = reply.iter_text()
            text = next(stream)
            os.close(ours)
            text += "".join(stream)
        assert text.count("z") == 60
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in "".join(lines)


@pytest.mark.parametrize("num_signals", [1, 2])
def test_a_client_that_does_not_read_its_stream_holds_up_no_stop(tmp_path: Path, num_signals: int) -> None:
    drain_seconds = 0.5 if num_signals == 1 else 10 * PATIENCE
    with (
        server_process(make_model_folder(tmp_path / "toy"), drain_seconds) as (process, url, lines),
        socket.socket() as connection,
    ):
        wait_until(lambda: httpx.get(f"{url}/ready", timeout=PATIENCE).status_code == 200)
        fields = {"prompt": script(per_step=100), "max_tokens": 2000, "n": 8, "logprobs": 20}
        body = json.dumps(fields | {"stream": True}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", httpx.URL(url).port))
        connection.sendall(head.encode() + body)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        ended = 'gander_requests_total{end="length",model_name="toy"} 8.0'
        wait_until(lambda: ended in httpx.get(f"{url}/metrics", timeout=PATIENCE).text)
        for _ in range(num_signals):
            num_lines = len(lines)
            process.terminate()
            wait_until(lambda number=num_lines: any("Stopping" in line for line in lines[number:]))
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in "".join(lines)


def is_listening(url: str) -> bool:
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), PATIENCE).close()
    except ConnectionRefusedError:
        return False
    return True
