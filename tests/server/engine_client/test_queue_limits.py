"""How much may wait, and for how long: the gate by itself, then limits and deadlines through HTTP."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from server.config import ServerSettings
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.queue_gate import LONGEST_RETRY, QueueGate, QueueLimits
from server.engine_client.replies import Replies, WorkerGone
from server.engine_client.request_bytes import ID_BYTES, TOKEN_BYTES, call_bytes
from server.http.errors import ApiError
from tests.server.servers import PATIENCE, RunningServer, make_model_folder, running_server, wait_until

GONE = WorkerGone("it is over", "over")


def submit(number: int, tenant: str = "a", prompt_len: int = 10) -> Submit:
    return Submit(
        request_id=f"{number}",
        prompt=[1] * prompt_len,
        sampling=SamplingParams(max_tokens=5),
        speculation=SpeculationParams(),
        tenant=tenant,
    )


class Gate:
    def __init__(self, **limits: int) -> None:
        self.requests = OpenRequests(lambda ticket, _: self.gate.note_end(ticket))
        self.gate = QueueGate(QueueLimits(**({"max_waiting": 100} | limits)), self.requests)

    def add(self, *requests: Submit, age: float = 0.0, num_bytes: int = 0) -> None:
        for request in requests:
            replies = Replies([request.request_id], lambda _: None)
            self.requests.add(Ticket(request, replies, 0, num_bytes, submitted=time.perf_counter() - age))

    def refuses(self, *requests: Submit, max_running: int = 2, num_bytes: int = 0) -> ApiError | None:
        try:
            self.gate.check(requests, num_bytes, max_running)
        except ApiError as error:
            return error
        return None


def test_one_key_that_fills_its_part_of_the_queue_leaves_the_rest_to_others() -> None:
    gate = Gate(max_waiting=10, max_waiting_per_key=3)
    gate.add(*(submit(number) for number in range(5)))
    refused = gate.refuses(submit(9))
    assert refused is not None
    assert (refused.status, refused.code) == (429, "queue_full")
    assert "of this API key" in refused.message
    assert gate.refuses(*(submit(number, "b") for number in range(10, 15))) is None
    gate.add(*(submit(number, "b") for number in range(10, 15)), submit(20, "c"), submit(21, "c"))
    assert gate.refuses(submit(30, "d")) is not None


def test_prompts_that_wait_are_counted_in_tokens_and_one_alone_may_have_any_length() -> None:
    gate = Gate(max_waiting_tokens=100, max_waiting_tokens_per_key=50)
    assert gate.refuses(submit(1, prompt_len=400)) is None
    gate.add(submit(1, prompt_len=40))
    assert gate.refuses(submit(2, prompt_len=11)) is not None
    assert gate.refuses(submit(2, "b", prompt_len=60)) is None
    assert gate.refuses(submit(2, "b", prompt_len=61)) is not None
    gate.requests.end("1", GONE)
    assert gate.refuses(submit(2, prompt_len=50)) is None


def test_what_requests_hold_is_bounded_and_a_call_alone_may_hold_anything() -> None:
    gate = Gate(max_request_bytes=100, max_request_bytes_per_key=50)
    assert gate.refuses(submit(1), num_bytes=400) is None
    gate.add(submit(1), num_bytes=40)
    refused = gate.refuses(submit(2), num_bytes=11)
    assert refused is not None
    assert (refused.status, refused.message) == (
        429,
        "Too many bytes of requests of this API key are waiting; try again later.",
    )
    assert gate.refuses(submit(2, "b"), num_bytes=60) is None
    assert gate.refuses(submit(2, "b"), num_bytes=61) is not None
    gate.requests.end("1", GONE)
    assert gate.refuses(submit(2), num_bytes=50) is None


def test_a_call_holds_its_tokens_lists_and_counts_of_penalties() -> None:
    plain = submit(1)
    lists = SamplingParams(max_tokens=5, logit_bias={1: 1.0}, bad_words=((1, 2),), allowed_token_ids=(1, 2, 3))
    counting = SamplingParams(max_tokens=5, presence_penalty=1.0)
    alone = call_bytes([plain], 1000)
    assert call_bytes([plain] * 3, 1000) == 3 * alone
    assert call_bytes([submit(1, prompt_len=110)], 1000) == alone + 100 * TOKEN_BYTES
    for asked, more in ((lists, 7 * ID_BYTES), (counting, 3 * 5 * 1000)):
        request = msgspec.structs.replace(plain, sampling=asked)
        assert call_bytes([request] * 3, 1000) == 3 * alone + more


def test_when_to_come_again_follows_the_rate_at_which_requests_end() -> None:
    def seconds(*, num_ended: int, age: float, num_asked: int = 1) -> int:
        gate = Gate(max_waiting=0)
        gate.add(*(submit(number) for number in range(num_ended + 2)), age=age)
        for number in range(num_ended):
            gate.requests.end(f"{number}", GONE)
        error = gate.refuses(*(submit(100 + number) for number in range(num_asked)))
        assert error is not None
        assert error.retry_after is not None
        return error.retry_after

    assert seconds(num_ended=20, age=10) == 1
    assert seconds(num_ended=20, age=10, num_asked=8) == 5
    assert seconds(num_ended=2, age=40) == 20 + 1
    assert seconds(num_ended=0, age=7) == 7 + 1
    assert seconds(num_ended=0, age=5000) == LONGEST_RETRY


def script(**fields: object) -> str:
    return json.dumps(fields)


@contextmanager
def server_with(tmp_path: Path, **settings: object) -> Iterator[RunningServer]:
    folder = make_model_folder(tmp_path / "toy")
    options = {"model": str(folder), "drain_seconds": 2, "keep_alive_seconds": 0.1} | settings
    with running_server(ServerSettings(**options)) as running:
        yield running


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with server_with(tmp_path_factory.mktemp("models")) as running:
        yield running


def ended_at_once(server: RunningServer) -> None:
    wait_until(lambda: server.served.client.num_open == 0)


def test_a_reply_that_is_not_done_in_its_time_is_504_and_is_given_up(plain: RunningServer) -> None:
    body = {"prompt": script(delay=0.02, per_step=1), "max_tokens": 3000, "n": 2}
    for reply in (
        plain.post(**body, timeout=0.1),
        plain.http.post("/v1/completions", json=body, headers={"X-Request-Timeout": "0.1"}),
        plain.http.post("/v1/completions", json=body | {"timeout": 0.1}, headers={"X-Request-Timeout": "60"}),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (504, "timeout")
        ended_at_once(plain)
    assert plain.metric("gander_requests_total") >= 6


def test_a_stream_that_is_not_done_in_its_time_ends_in_an_error_event(plain: RunningServer) -> None:
    reply = plain.post(prompt=script(delay=0.02, per_step=1), max_tokens=3000, stream=True, timeout=2)
    assert reply.status_code == 200
    frames = reply.text.strip().split("\n\n")
    assert json.loads(frames[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    assert frames[-1] == "data: [DONE]"
    assert len(frames) > 3
    ended_at_once(plain)


def test_a_reply_in_time_is_as_ever_and_a_time_that_is_none_is_400(plain: RunningServer) -> None:
    assert plain.post(prompt=script(say="fine"), timeout=PATIENCE).json()["choices"][0]["text"] == "fine"
    for bad in (0, -1, "soon"):
        assert plain.post(prompt="a", timeout=bad).json()["error"]["param"] == "timeout"
        headers = {"X-Request-Timeout": str(bad)}
        reply = plain.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "X-Request-Timeout")


def test_what_waits_too_long_for_its_first_token_is_408_and_what_has_begun_goes_on(tmp_path: Path) -> None:
    with server_with(tmp_path, max_queue_seconds=2) as server:
        begun: dict[str, httpx.Response] = {}
        body = {"prompt": script(say="z" * 30, per_step=1, delay=0.04), "max_tokens": 40}
        thread = threading.Thread(target=lambda: begun.update(reply=server.post(**body)))
        thread.start()
        wait_until(lambda: server.served.client.num_by_tenant()["", True])
        reply = server.post(prompt=script(delay=5), max_tokens=3)
        assert (reply.status_code, reply.json()["error"]["code"]) == (408, "queue_timeout")
        assert int(reply.headers["retry-after"]) >= 1
        thread.join()
        assert begun["reply"].json()["choices"][0]["text"] == "z" * 30


def test_weights_calls_and_priorities_reach_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("heavy weight=3\nadmin root\n")

    def told(key: str, **body: object) -> httpx.Response:
        headers = {"Authorization": f"Bearer {key}"}
        return server.http.post(
            "/v1/completions", json={"prompt": script(tell=True), "max_tokens": 2000} | body, headers=headers
        )

    with server_with(tmp_path, api_key_file=str(file)) as server:
        requests = [json.loads(choice["text"]) for choice in told("heavy", n=2).json()["choices"]]
        assert {request["weight"] for request in requests} == {3.0}
        assert len({request["call_id"] for request in requests}) == 1
        assert json.loads(told("root", priority=-5).json()["choices"][0]["text"])["priority"] == -5
        refused = told("heavy", priority=-5)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "priority")
        assert told("heavy", priority=0).status_code == 200
