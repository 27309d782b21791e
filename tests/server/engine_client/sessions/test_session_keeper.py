"""A folder of sessions that fails or does not answer loses nothing for good, and holds no call up for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from decoding.config import EngineConfig
from decoding.core.sampling_params import SamplingParams
from decoding.core.session_info import SessionState
from decoding.core.speculation_params import SpeculationParams
from decoding.worker.calls import Submit
from decoding.worker.messages import SessionKept
from server.engine_client.client import EngineClient
from server.engine_client.processes.standby import Standby
from server.engine_client.queue_gate import QueueLimits
from server.engine_client.replies import Expired
from server.engine_client.sessions import session_keeper
from server.engine_client.sessions.session_folder import FolderLimits, SessionFolder
from server.engine_client.sessions.session_keeper import SessionKeeper
from server.engine_client.status import EngineStatus
from tests.server.engine_client.jumping import run
from tests.server.engine_client.processes.test_supervisor import Unmoved
from tests.server.ready import READY

ROOMY = FolderLimits(per_tenant=2**20, in_all=2**20, time_to_live=3600.0)


def state(session_id: str, num_bytes: int = 100) -> SessionState:
    return SessionState("alice", session_id, {"context": [bytes(num_bytes)]})


class FailingFolder:
    """Notes the names that it is to write, and fails for those in `failing`."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.asked: list[str] = []

    def write(self, state: SessionState, _: str) -> bool:
        self.asked.append(state.session_id)
        return state.session_id not in self.failing

    def tidy(self) -> None:
        self.asked.append("tidied")


def keeper(folder: Any) -> SessionKeeper:
    return SessionKeeper(lambda _: True, folder, lambda: True, 2**20)


def test_what_could_not_be_written_is_written_later_unless_it_was_forgotten() -> None:
    async def test() -> None:
        folder = FailingFolder("a", "b")
        sessions = keeper(folder)
        for name in "abc":
            sessions.on_news(SessionKept(state=state(name)))
        assert not await sessions._write(folder)  # type: ignore[arg-type]
        await sessions.forget("alice", "b")
        folder.failing.clear()
        assert await sessions._write(folder)  # type: ignore[arg-type]
        assert await sessions._write(folder)  # type: ignore[arg-type]
        assert folder.asked == ["a", "b", "c", "a"]

    run(test())


def test_a_copy_that_comes_in_parts_is_kept_once_it_is_whole() -> None:
    async def test() -> None:
        sessions = keeper(None)
        parts = [SessionState("alice", "a", {"ngrams": [b"1", b"2"]}), SessionState("alice", "a", {"ngrams": [b"3"]})]
        last = SessionState("alice", "a", {"replies": [b"4"]})
        sessions.on_news(SessionKept(state=parts[0], is_last=False))
        assert sessions.kept("alice", "a") is None
        for number, part in enumerate(parts):  # from the start, since the copy before was given up
            sessions.on_news(SessionKept(state=part, is_first=number == 0, is_last=False))
        sessions.on_news(SessionKept(state=last, is_first=False))
        assert sessions.kept("alice", "a") == SessionState(
            "alice", "a", {"ngrams": [b"1", b"2", b"3"], "replies": [b"4"]}
        )

    run(test())


def test_the_oldest_that_cannot_be_written_are_dropped_where_they_are_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_keeper, "MOST_UNWRITTEN_BYTES", 250)

    async def test() -> None:
        folder = FailingFolder(*"abcd")
        sessions = keeper(folder)
        for name in "abcd":
            sessions.on_news(SessionKept(state=state(name)))
        await sessions._write(folder)  # type: ignore[arg-type]
        await sessions._write(folder)  # type: ignore[arg-type]
        assert folder.asked == [*"abcd", *"cd"]

    run(test())


def test_the_folder_is_looked_through_once_a_minute_however_often_it_is_written_to() -> None:
    async def at_once(work: Callable[[], object]) -> object:
        return work()

    async def test() -> None:
        folder = FailingFolder()
        sessions = keeper(folder)
        sessions._run = at_once  # type: ignore[method-assign,assignment]
        sessions.start()
        for _ in range(150):
            sessions.on_news(SessionKept(state=state("a")))
            await asyncio.sleep(1.0)
        assert folder.asked.count("a") > 140
        assert folder.asked.count("tidied") == 3
        await sessions.close(may_ask=False)

    run(test())


def test_a_session_that_comes_back_replaces_what_the_worker_had_and_is_what_it_hands_on() -> None:
    async def test() -> None:
        told: list[Any] = []
        sessions = SessionKeeper(lambda message: not told.append(message), None, lambda: True, 2**20)
        for size, replaces in ((1, True), (2, True), (3, False)):
            sessions.adopt(state("a", size), replaces)
        assert [(each.state.num_bytes, each.replaces) for each in told] == [(1, True), (2, True)]
        assert sessions.kept("alice", "a") == state("a", 2)

    run(test())


def test_a_folder_that_does_not_answer_takes_no_more_than_a_calls_own_time(tmp_path: Path) -> None:
    async def test() -> None:
        folder, answers = SessionFolder(tmp_path, ROOMY), Event()
        folder.read = lambda *_: answers.wait() and None  # type: ignore[method-assign,assignment]
        client = EngineClient(
            EngineConfig(), QueueLimits(max_waiting=10), Unmoved(), Standby((), is_wanted=False), sessions_folder=folder
        )
        worker = client.workers[0]
        worker.ready, worker.status = READY, EngineStatus(state="ready")
        client.status = worker.status
        request = Submit(
            request_id="one", prompt=[1], sampling=SamplingParams(max_tokens=1), speculation=SpeculationParams()
        )
        try:
            replies = await client.submit([request], timeout=0.5)
            (reply,) = (await replies.read()).values()
        finally:
            answers.set()
        assert isinstance(reply.end, Expired)

    run(test())
