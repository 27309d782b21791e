"""What goes wrong with a process that no test can bring about with a real one: it is told, another one is started."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from decoding.config import EngineConfig
from decoding.core.events import Finished, Tokens
from decoding.core.request import FinishReason
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.worker.calls import Call, Submit
from decoding.worker.messages import Abort, Batch, Beat, FromWorker, LoadFailed, ToWorker
from server.engine_client.open_requests import OpenRequests, Ticket
from server.engine_client.processes.restart_policy import RestartPolicy
from server.engine_client.processes.standby import Standby
from server.engine_client.processes.supervisor import Supervisor
from server.engine_client.processes.worker_process import WORKER_COMMAND, Pulse, WorkerProcess
from server.engine_client.replies import Replies
from server.engine_client.status import EngineStatus
from server.engine_client.worker import Worker
from tests.server.engine_client.jumping import run
from tests.server.ready import READY

# A process that binds its inbox late, and ends well if it is told to abort a request.
LATE_LISTENER = """
import sys, time, zmq
time.sleep(0.2)
inbox = zmq.Context().socket(zmq.PULL)
inbox.bind(sys.argv[sys.argv.index("--inbox") + 1])
assert inbox.poll(60_000) and b"early" in inbox.recv()
"""


class Process:
    """Ready as soon as it is listened to, or never where it stands still. It replies one token to each request, if it
    hears requests."""

    def __init__(self, number: int, *, hears: bool = True, dies: bool = True, stands_still: bool = False) -> None:
        self.pid = number
        self.pulse = Pulse()
        self.verdict: str | None = None
        self.is_closed = False
        self._hears = hears
        self._dies = dies
        self._stands_still = stands_still
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._say: Callable[[Batch], None] = lambda _: None

    async def listen(self, on_batch: Callable[[Batch], None]) -> int:
        self._say = on_batch
        if self._stands_still:
            self._beat(0)
        else:
            self._tell(READY)
        return await asyncio.shield(self._ended)

    def send(self, message: ToWorker) -> None:
        if self._hears and isinstance(message, Call):
            for choice in message.choices:
                asyncio.get_running_loop().call_soon(self._reply, choice.request_id)

    def kill(self, verdict: str) -> None:
        self.verdict = verdict
        if self._dies:
            self._ended.set_result(-9)

    def running(self) -> frozenset[str]:
        return frozenset()

    async def stop(self, _: float) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def _beat(self, second: int) -> None:
        self._tell(Beat(busy_seconds=0.0, still_seconds=second))
        if not self._ended.done():
            asyncio.get_running_loop().call_later(1.0, self._beat, second + 1)

    def _reply(self, request_id: str) -> None:
        end = Finished(
            request_id=request_id, reason=FinishReason.LENGTH, stats=RequestStats(prompt_tokens=1, emitted=1)
        )
        self._tell(Tokens(request_id=request_id, token_ids=[5], logprobs=None), end)

    def _tell(self, *messages: FromWorker) -> None:
        batch = Batch(list(messages))
        self.pulse.hear(batch)
        self._say(batch)


class Starts(Standby):
    """Each start does the next of what is scripted, and the last one again and again."""

    def __init__(self, *starts: Callable[[int], Coroutine[Any, Any, Process]]) -> None:
        super().__init__((), is_wanted=False)
        self._starts = list(starts)
        self.processes: list[Process] = []

    async def take(self, config: EngineConfig) -> Any:  # noqa: ARG002 - as of the real one
        start = self._starts.pop(0) if len(self._starts) > 1 else self._starts[0]
        self.processes.append(await start(len(self.processes) + 1))
        return self.processes[-1]


def starts_as(**fields: bool) -> Callable[[int], Coroutine[Any, Any, Process]]:
    async def start(number: int) -> Process:
        return Process(number, **fields)

    return start


async def fails(_: int) -> Process:
    raise OSError("no memory for a process")


async def hangs(_: int) -> Process:
    return await asyncio.get_running_loop().create_future()


class Unmoved:
    """Told of everything, and does nothing."""

    def on_report(self, *_: object) -> None:
        pass

    on_death = on_end = on_resumed = on_report


@asynccontextmanager
async def supervised(
    starts: Standby, policy: RestartPolicy | None = None
) -> AsyncIterator[tuple[Worker, OpenRequests]]:
    """A worker whose supervisor is started, until the block ends, and the requests that are open."""
    requests = OpenRequests(lambda ticket, _: worker.requests.drop(ticket))
    worker = Worker(EngineConfig(), requests, Unmoved(), None)
    supervisor = Supervisor(worker, starts, policy or RestartPolicy())
    supervisor.start()
    yield worker, requests
    await supervisor.close(0.0)


def asked(worker: Worker, requests: OpenRequests) -> Replies:
    """The replies to one request, which is given to the worker now."""
    request = Submit(
        request_id="one", prompt=[1], sampling=SamplingParams(max_tokens=1), speculation=SpeculationParams()
    )
    replies = Replies(["one"], lambda _: None, patience=1e6)
    ticket = Ticket(request, replies, 0)
    requests.add(ticket)
    worker.give([ticket])
    return replies


async def reached(worker: Worker, state: str) -> EngineStatus:
    """The status once it is of this state. Raises TimeoutError if it never is."""
    found: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()

    def look(status: EngineStatus) -> None:
        if status.state == state and not found.done():
            found.set_result(status)

    look(worker.status)
    worker.subscribe(look)
    async with asyncio.timeout(100_000):
        return await found


@pytest.mark.parametrize(("start", "told"), [(fails, "(no memory for a process)"), (hangs, "in 300 s")])
def test_a_start_that_fails_or_hangs_is_tried_again(start: Any, told: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with supervised(Starts(start, start, starts_as())) as (worker, _):
            assert (await reached(worker, "restarting")).sentence == f"a worker could not be started {told}"
            assert (await reached(worker, "ready")).restarts == 2

    run(test())
    assert f"A worker could not be started {told}." in caplog.messages


def test_a_load_that_stands_still_is_killed_though_its_heart_beats() -> None:
    async def test() -> None:
        async with supervised(Starts(starts_as(stands_still=True), starts_as())) as (worker, _):
            await reached(worker, "ready")
            assert worker.status.last_error == "worker 1 was killed: its load stood still for more than 3000 s"

    run(test())


def test_a_worker_that_can_never_be_started_is_given_up() -> None:
    async def test() -> None:
        async with supervised(Starts(fails), RestartPolicy(attempts=3)) as (worker, _):
            assert "4 times in a row" in (await reached(worker, "failed")).sentence

    run(test())


def test_a_killed_process_that_does_not_end_is_not_waited_for() -> None:
    async def test() -> None:
        async with supervised(Starts(starts_as(hears=False, dies=False), starts_as())) as (worker, requests):
            await reached(worker, "ready")
            replies = asked(worker, requests)
            async with asyncio.timeout(100_000):
                await requests.wait_until_empty()
            assert replies.take()[0].token_ids == [5], "by the second process"
            assert str(worker.status.last_error).endswith("and has not ended in 10 s")

    run(test())


def test_an_error_between_two_processes_is_told_and_ends_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        is_first = True

        def fail_once(status: EngineStatus) -> None:
            nonlocal is_first
            if status.restarts and is_first:
                is_first = False
                raise ValueError("a listener failed")

        async with supervised(Starts(fails, starts_as())) as (worker, _):
            worker.subscribe(fail_once)
            assert (await reached(worker, "failed")).sentence == "the worker cannot be run: a listener failed"

    run(test())
    assert "The worker cannot be run and is given up." in caplog.messages


def test_a_process_that_dies_while_it_stands_by_is_told_and_replaced_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started: list[Any] = []

    async def start(_: object) -> Any:
        started.append(Mock(is_alive=False, exit_status=-9, stop=AsyncMock()))
        return started[-1]

    async def test() -> None:
        monkeypatch.setattr(WorkerProcess, "start", start)
        standby = Standby((), is_wanted=True)
        for _ in range(100):
            await standby.prepare()
        assert len(started) == 7  # at 0, 2, 5, 10, 19, 36 and 69 s
        assert all(process.close.called for process in started[:-1])
        await standby.close()

    run(test())
    assert caplog.messages[2] == "The process that stood by exited with status -9; another in 4 s."


def test_a_process_that_has_begun_is_taken_whether_one_is_to_stand_by_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Any] = []

    async def start(command: object) -> Any:
        commands.append(command)
        return Mock(is_alive=True, stop=AsyncMock())

    async def test() -> None:
        monkeypatch.setattr(WorkerProcess, "start", start)
        standby = Standby(("worker",), is_wanted=False)
        await standby.begin()
        await standby.prepare()
        first, second = await standby.take(EngineConfig()), await standby.take(EngineConfig())
        assert first is not second
        assert commands == [("worker",), ("worker",)]
        await standby.begin()
        begun = standby._waiting
        await standby.close()
        assert begun.kill.called  # type: ignore[union-attr]
        monkeypatch.setattr(WorkerProcess, "start", AsyncMock(side_effect=OSError(11, "no process")))
        await standby.begin()
        with pytest.raises(OSError, match="no process"):
            await standby.take(EngineConfig())

    run(test())


@pytest.mark.skipif(sys.platform != "linux", reason="only there it is patient")
def test_a_process_that_is_wanted_while_it_still_imports_gives_up_its_patience() -> None:
    async def test() -> None:
        worker = await WorkerProcess.start((*WORKER_COMMAND, "--patient"))
        command = Path(f"/proc/{worker.pid}/cmdline")
        said: list[FromWorker] = []
        was_patient: list[bool] = []

        def hear(batch: Batch) -> None:
            said.extend(batch.messages)
            was_patient.append(b"--patient" in command.read_bytes())

        try:
            worker.load(EngineConfig(model="/no/such/model"))
            await worker.listen(hear)
        finally:
            worker.close()
        assert any(isinstance(message, LoadFailed) for message in said)
        assert not any(was_patient)

    asyncio.run(test())


def test_a_message_waits_for_a_process_that_is_not_there_yet() -> None:
    async def test() -> None:
        worker = await WorkerProcess.start((sys.executable, "-c", LATE_LISTENER))
        try:
            worker.send(Abort(request_id="early"))
            assert await worker.listen(lambda _: None) == 0
        finally:
            worker.close()

    asyncio.run(test())
