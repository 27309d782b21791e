"""The worker process answers every request exactly once, over its real sockets."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import zmq

from decoding.config import EngineConfig
from decoding.core.events import Failed, Finished, PromptLogprobs, PromptProgress, Rejected, Tokens
from decoding.core.grammar import Grammar
from decoding.core.sampling_params import SamplingParams
from decoding.core.session_info import SessionInfo, SessionState
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import EngineStats, StepStats
from decoding.engine.engine import Announce
from decoding.engine.step_result import StepResult
from decoding.stores.session_store import SessionLimits, SessionStore
from decoding.worker import heart, messages
from decoding.worker.calls import Submit, call_of
from decoding.worker.heart import Heart
from decoding.worker.running_file import read_running
from decoding.worker.worker import TAKE_SECONDS, Worker
from tests.models import VOCAB_SIZE, tiny

PATIENCE_MS = 120_000
STEP = StepStats(
    rows=1, prefill_rows=0, step_seconds=0.1, plain_seconds=0.1, phase_seconds={"forward": 0.1}, counts_by_method={}
)
ENGINE = EngineStats(
    running=0, waiting=0, slots_used=0, slots_cached=0, slots_total=9, sessions=0, session_bytes=0, resident_bytes=1
)


class WorkerProcess:
    """A worker, its two sockets, and what it has said so far."""

    def __init__(self, folder: Path, config: EngineConfig, parent: int) -> None:
        self._context = zmq.Context()
        self._inbox, self._outbox = self._context.socket(zmq.PUSH), self._context.socket(zmq.PULL)
        inbox, outbox = f"ipc://{folder}/in", f"ipc://{folder}/out"
        self._inbox.connect(inbox)
        self._outbox.bind(outbox)
        command = [sys.executable, "-m", "decoding.worker", "--inbox", inbox, "--outbox", outbox]
        self._running = (folder / "running").open("w+b")
        command += ["--running", str(self._running.fileno()), "--parent", str(parent)]
        self._config = config
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(self._running.fileno(),))
        self._decoder = msgspec.msgpack.Decoder(messages.Batch)
        self._heard: list[messages.FromWorker] = []
        self.kept: dict[str, SessionState] = {}

    def load(self) -> None:
        assert self.process.stdin is not None
        with self.process.stdin as line:
            line.write(msgspec.json.encode(self._config) + b"\n")

    def tell(self, message: messages.ToWorker | Submit) -> None:
        self.tell_bytes(msgspec.msgpack.encode(call_of([message]) if isinstance(message, Submit) else message))

    def tell_bytes(self, frame: bytes) -> None:
        self._inbox.send(frame)

    @property
    def is_silent(self) -> bool:
        return not self._outbox.poll(0)

    def hear(self) -> messages.FromWorker:
        """The next message that is neither a step report nor a beat, nor a copy of a session, which is noted."""
        for _ in range(10_000):
            if self._heard:
                message = self._heard.pop(0)
                if isinstance(message, messages.SessionKept):
                    state = message.state
                    before = None if message.is_first else self.kept[state.session_id]
                    self.kept[state.session_id] = state if before is None else before.with_arrays(state.stores)
                elif not isinstance(message, messages.StepReport | messages.Beat | messages.SessionForgotten):
                    return message
            elif self._outbox.poll(PATIENCE_MS):
                self._heard += self._decoder.decode(self._outbox.recv()).messages
            else:
                break
        raise AssertionError("the worker said nothing")

    def hear_until_ready(self) -> messages.Ready:
        message = self.hear()
        while isinstance(message, messages.LoadProgress):
            message = self.hear()
        assert isinstance(message, messages.Ready), message
        return message

    def hear_until_end(self, request_id: str) -> tuple[list[int], messages.FromWorker]:
        """A request's tokens, and the message that ended it."""
        tokens: list[int] = []
        while True:
            message = self.hear()
            if getattr(message, "request_id", None) != request_id:
                continue
            if isinstance(message, Tokens):
                tokens += message.token_ids
            elif not isinstance(message, PromptProgress):
                return tokens, message

    def running(self) -> frozenset[str]:
        """The requests that it is at, by its file."""
        return read_running(self._running.fileno())

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_MS / 1000)
        self._running.close()
        self._inbox.close(linger=0)
        self._outbox.close(linger=0)
        self._context.term()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny("llama").save_pretrained(folder)
    return folder


def started(model_folder: Path, socket_folder: Path, parent: int | None = None) -> WorkerProcess:
    config = EngineConfig(model=str(model_folder), max_model_len=300, kv_slots=4000, threads=1)
    worker = WorkerProcess(socket_folder, config, parent or os.getpid())
    worker.load()
    return worker


@pytest.fixture(scope="module")
def worker(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    worker = started(model_folder, tmp_path_factory.mktemp("sockets"))
    try:
        message = worker.hear_until_ready()
        assert message.vocab_size == VOCAB_SIZE
        assert "spine" in message.methods
        yield worker
    finally:
        worker.close()


def submit(request_id: str, prompt: list[int], max_tokens: int = 12, method: str = "auto") -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return Submit(request_id=request_id, prompt=prompt, sampling=sampling, speculation=SpeculationParams(method=method))


def session_info(worker: WorkerProcess, session_id: str) -> SessionInfo:
    worker.tell(messages.ListSessions(id="which", tenant=None))
    answer = worker.hear()
    assert isinstance(answer, messages.Sessions)
    return next(info for info in answer.sessions if info.session_id == session_id)


def test_a_session_is_handed_over_and_goes_on_where_it_was(worker: WorkerProcess) -> None:
    request = msgspec.structs.replace(submit("kept", [5, 9, 7] * 6, method="stand"), session_id="kept")
    worker.tell(request)
    worker.hear_until_end("kept")
    for _ in range(200):
        before = session_info(worker, "kept")
        elsewhere = SessionStore(SessionLimits(2**24, 2**26, 2**26))
        if "kept" in worker.kept:
            elsewhere.restore(worker.kept["kept"], VOCAB_SIZE)
            if elsewhere.list()[0].store_bytes == before.store_bytes:
                break
        time.sleep(0.1)
    assert before.store_bytes["ngrams"] > 0
    assert elsewhere.list()[0].store_bytes == before.store_bytes
    worker.tell(messages.DeleteSession(id="gone", tenant="", session_id="kept"))
    assert worker.hear() == messages.SessionDeleted(id="gone", found=True)
    worker.tell(messages.RestoreSession(id="back", state=worker.kept["kept"]))
    assert worker.hear() == messages.SessionRestored(id="back", problem=None)
    worker.tell(messages.CopySession(id="copy", tenant="", session_id="kept"))
    assert worker.hear() == messages.SessionCopied(id="copy", state=worker.kept["kept"])
    after = session_info(worker, "kept")
    assert (after.num_bytes, after.store_bytes) == (before.num_bytes, before.store_bytes)
    worker.tell(msgspec.structs.replace(request, request_id="again"))
    tokens, _ = worker.hear_until_end("again")
    assert len(tokens) == request.sampling.max_tokens
    worker.kept.clear()
    worker.tell(messages.HandOver(id="all"))
    assert worker.hear() == messages.HandedOver(id="all")
    assert "kept" in worker.kept, "what was used is not told of before the answer"
    worker.tell(messages.RestoreSession(id="bad", state=SessionState("", "bad", {"ngrams": [b"1", b"2"]})))
    answer = worker.hear()
    assert isinstance(answer, messages.SessionRestored)
    assert answer.problem is not None


def test_drafted_and_plain_requests_get_the_same_tokens(worker: WorkerProcess) -> None:
    prompt = [5, 9, 7] * 6
    replies = []
    for method in ("none", "spine"):
        worker.tell(submit(method, prompt, 40, method))
        tokens, end = worker.hear_until_end(method)
        assert isinstance(end, Finished)
        assert end.reason == "length"
        assert end.stats.method == method
        assert end.stats.emitted == len(tokens) == 40
        replies.append(tokens)
    assert replies[0] == replies[1]


def test_a_resumed_request_is_given_the_rest(worker: WorkerProcess) -> None:
    worker.tell(submit("whole", [5, 9, 7] * 6, 40))
    whole, _ = worker.hear_until_end("whole")
    worker.tell(msgspec.structs.replace(submit("rest", [5, 9, 7] * 6, 40), resumed=whole[:15]))
    rest, end = worker.hear_until_end("rest")
    assert rest == whole[15:]
    assert worker.running() == {"rest"}, "what it ran last, told before the step"
    assert isinstance(end, Finished)
    assert (end.stats.resumed_tokens, end.stats.emitted) == (15, 25)


@pytest.mark.slow
def test_the_next_worker_goes_on_where_one_with_states_was_killed(tmp_path: Path) -> None:
    """What layers carry dies with a worker: the next one runs prompt and reply again."""
    tiny("lfm2").save_pretrained(tmp_path / "model")
    asked = [
        msgspec.structs.replace(
            submit(method, [5, 9, 7] * 20, 200, method),
            sampling=SamplingParams(max_tokens=200, temperature=temperature, seed=3, ignore_eos=True),
        )
        for method, temperature in (("none", 0.0), ("auto", 0.0), ("spine", 0.7), ("none", 0.7))
    ]
    asked = [msgspec.structs.replace(each, request_id=f"{place}") for place, each in enumerate(asked)]
    told: dict[str, list[int]] = {each.request_id: [] for each in asked}
    first, ended = started(tmp_path / "model", tmp_path), set()
    try:
        first.hear_until_ready()
        for each in asked:
            first.tell(each)
        while min(map(len, told.values())) < 5:
            message = first.hear()
            ended |= {message.request_id} if isinstance(message, Finished) else set()
            if isinstance(message, Tokens):
                told[message.request_id] += message.token_ids
    finally:
        first.close()
    assert len(ended) < len(asked)
    (tmp_path / "next").mkdir()
    second = started(tmp_path / "model", tmp_path / "next")
    try:
        second.hear_until_ready()
        for each in asked:
            if each.request_id not in ended:
                second.tell(msgspec.structs.replace(each, resumed=told[each.request_id]))
                rest, end = second.hear_until_end(each.request_id)
                assert isinstance(end, Finished)
                told[each.request_id] += rest
        assert all(len(tokens) == 200 for tokens in told.values())
        for each in asked:
            second.tell(msgspec.structs.replace(each, request_id=f"whole {each.request_id}"))
            whole, _ = second.hear_until_end(f"whole {each.request_id}")
            assert whole == told[each.request_id]
    finally:
        second.close()


def test_what_cannot_be_served_is_rejected_with_its_field(worker: WorkerProcess) -> None:
    for request_id, bad, field in (
        ("empty", submit("empty", []), "prompt"),
        ("long", submit("long", [5] * 400), "prompt"),
        ("magic", submit("magic", [5], method="magic"), "speculation.method"),
    ):
        worker.tell(bad)
        tokens, end = worker.hear_until_end(request_id)
        assert tokens == []
        assert isinstance(end, Rejected)
        assert end.param == field


def test_an_aborted_request_is_finished_and_the_next_one_served(worker: WorkerProcess) -> None:
    worker.tell(submit("gone", [5, 6], 250))
    worker.tell(messages.Abort(request_id="gone"))
    worker.tell(messages.Abort(request_id="never heard of"))
    _, end = worker.hear_until_end("gone")
    assert isinstance(end, Finished)
    assert end.reason == "abort"
    worker.tell(submit("next", [5, 6]))
    tokens, _ = worker.hear_until_end("next")
    assert len(tokens) == 12


def test_everything_that_is_asked_of_tokens_crosses_the_wire(worker: WorkerProcess) -> None:
    sampling = SamplingParams(
        max_tokens=20,
        temperature=0.0,
        ignore_eos=True,
        presence_penalty=2.0,
        frequency_penalty=1.0,
        repetition_penalty=1.5,
        logit_bias={9: 100.0, 11: -100.0},
        bad_words=((9, 9),),
        allowed_token_ids=(5, 7, 9, 11, 13),
        logprobs=2,
        prompt_logprobs=1,
    )
    speculation = SpeculationParams(method="spine")
    asked = Submit(
        request_id="all", prompt=[5, 9, 7] * 6, sampling=sampling, speculation=speculation, prediction=[9, 5, 9, 5, 9]
    )
    worker.tell(asked)
    first = worker.hear()
    assert isinstance(first, PromptLogprobs)
    assert first.logprobs[0] is None
    assert [scored.token_id for scored in first.logprobs if scored] == asked.prompt[1:]
    tokens: list[int] = []
    while isinstance(message := worker.hear(), Tokens):
        assert message.logprobs is not None
        assert [scored.token_id for scored in message.logprobs] == message.token_ids
        assert all(len(scored.top) == 2 for scored in message.logprobs)
        tokens += message.token_ids
    assert set(tokens) <= {5, 7, 9, 13}
    assert tokens[::2] == [9] * 10 or tokens[1::2] == [9] * 10  # always the best, and never twice
    assert isinstance(message, Finished)
    assert message.stats.accepted_prediction_tokens + message.stats.rejected_prediction_tokens == 5


def test_a_grammar_without_a_tokenizer_is_rejected(worker: WorkerProcess) -> None:
    sampling = SamplingParams(max_tokens=5, grammar=Grammar("choice", '["a"]'))
    speculation = SpeculationParams()
    worker.tell(Submit(request_id="grammar", prompt=[5], sampling=sampling, speculation=speculation))
    tokens, end = worker.hear_until_end("grammar")
    assert tokens == []
    assert isinstance(end, Rejected)
    assert end.param == "grammar"
    assert "tokenizer.json" in end.message


def test_sessions_are_listed_and_deleted_by_their_tenant(worker: WorkerProcess) -> None:
    asked = msgspec.structs.replace(submit("mine", [5, 6, 7] * 4), tenant="alice", session_id="chat")
    worker.tell(asked)
    worker.hear_until_end("mine")
    worker.tell(messages.ListSessions(id="a", tenant="alice"))
    shown = worker.hear()
    assert isinstance(shown, messages.Sessions)
    assert shown.id == "a"
    assert [(each.tenant, each.session_id) for each in shown.sessions] == [("alice", "chat")]
    assert shown.sessions[0].num_bytes > 0
    for question, is_there in (("b", True), ("c", False)):
        worker.tell(messages.DeleteSession(id=question, tenant="alice", session_id="chat"))
        assert worker.hear() == messages.SessionDeleted(id=question, found=is_there)
    worker.tell(messages.ListSessions(id="d", tenant="alice"))
    assert worker.hear() == messages.Sessions(id="d", sessions=[])


def test_a_drained_worker_finishes_its_requests_and_leaves(model_folder: Path, tmp_path: Path) -> None:
    """Also where SIGTERM comes, which systemd sends to all processes of a service."""
    worker = started(model_folder, tmp_path)
    try:
        worker.hear_until_ready()
        worker.process.terminate()
        worker.tell(submit("last", [5, 6], 30))
        worker.tell(messages.Drain())
        tokens, end = worker.hear_until_end("last")
        assert isinstance(end, Finished)
        assert len(tokens) == 30
        assert worker.process.wait(PATIENCE_MS / 1000) == 0
    finally:
        worker.close()


def test_a_model_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    worker = started(tmp_path / "nothing", tmp_path)
    try:
        message = worker.hear()
        while isinstance(message, messages.LoadProgress):
            message = worker.hear()
        assert isinstance(message, messages.LoadFailed)
        assert "nothing" in message.error
        assert worker.process.wait(PATIENCE_MS / 1000) == 1
    finally:
        worker.close()


def test_a_worker_whose_parent_died_while_it_was_importing_leaves_without_a_word(
    model_folder: Path, tmp_path: Path
) -> None:
    worker = started(model_folder, tmp_path, parent=os.getppid())  # some process, but not the one it was started by
    try:
        assert worker.process.wait(PATIENCE_MS / 1000) == 0
        assert worker.is_silent
    finally:
        worker.close()


def test_a_heart_beats_beside_the_loop_and_says_for_how_long_that_is_at_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heart, "BEAT_SECONDS", 0.05)
    address, decoder = f"ipc://{tmp_path}/out", msgspec.msgpack.Decoder(messages.Batch)
    with zmq.Context() as context, context.socket(zmq.PULL) as ear:
        ear.bind(address)
        beating = Heart(context, address)
        beating.start()
        told = (decoder.decode(ear.recv()).messages[0] for _ in range(100))
        seconds = (beat.busy_seconds for beat in told if isinstance(beat, messages.Beat))
        assert [next(seconds), next(seconds)] == [0.0, 0.0]
        beating.note_round()
        first = next(filter(None, seconds))  # others may have been on their way
        assert 0 < first < next(seconds)
        beating.stop()


def test_a_load_stands_still_while_it_uses_no_second_of_the_processor() -> None:
    load = heart.Load()
    told = [load.still_seconds(now, used) for now, used in [(5, 2), (6, 2.9), (300, 2.95), (301, 3), (400, 3.5)]]
    assert told == [0, 1, 295, 0, 99]


def test_steps_are_reported_together_now_and_then_and_at_once_when_nothing_is_left_to_do() -> None:
    told: list[messages.StepReport] = []
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        worker = Worker(inbox, outbox, Mock(), Heart(context, ""), os.getpid())
        worker._send = told.extend
        step, idle = StepResult(stats=STEP), SimpleNamespace(has_work=False, stats=lambda: ENGINE)
        busy = SimpleNamespace(has_work=True, runs_ahead=False, stats=lambda: ENGINE, step=lambda *_: step)
        for _ in range(3):
            worker._step(busy)
            worker._report(busy)
        assert [len(report.steps) for report in told] == [1]
        worker._report(idle)
        worker._report(idle)
        assert [len(report.steps) for report in told] == [1, 2]


@pytest.mark.parametrize("runs_ahead", [True, False])
def test_tokens_are_told_at_once_or_while_the_next_step_is_on_a_device(runs_ahead: bool) -> None:
    """But the last ones, and those of a request that ends otherwise, wait for no step."""
    log: list[str] = []
    outbox = SimpleNamespace(send=lambda frame: log.append(f"told {frame.count(b'Tokens')}"))
    worker = Worker(outbox, outbox, Mock(), Heart(None, ""), os.getpid())  # type: ignore[arg-type]
    engine = SimpleNamespace(has_work=True, runs_ahead=runs_ahead)

    def step(meanwhile: Callable[[], None], _: object) -> StepResult:
        log.append("launch")
        meanwhile()
        log.append("wait")
        return StepResult([Tokens(request_id="a", token_ids=[5])])

    engine.step = step
    worker._step(engine)  # type: ignore[arg-type]
    worker._step(engine)  # type: ignore[arg-type]
    worker._send([messages.Compiling(methods=[])])
    engine.has_work = False
    worker._step(engine)  # type: ignore[arg-type]
    late = ["launch", "wait", "launch", "told 1", "wait", "told 1", "launch", "wait", "told 1"]
    at_once = ["launch", "wait", "told 1", "launch", "wait", "told 1", "told 0", "launch", "wait", "told 1"]
    assert log == (late if runs_ahead else at_once)


def test_how_far_a_prompt_is_is_told_before_the_step_that_runs_more_of_it() -> None:
    log: list[object] = []
    decoder, running = msgspec.msgpack.Decoder(messages.Batch), Mock(write=log.append)
    outbox: Any = SimpleNamespace(send=lambda frame: log.append(decoder.decode(frame).messages))
    worker = Worker(outbox, outbox, running, Heart(None, ""), os.getpid())  # type: ignore[arg-type]
    engine: Any = SimpleNamespace(has_work=True, runs_ahead=False, compiling_ids=["compiled"])
    progress = [PromptProgress(request_id="a", processed=32, cached=16)]

    def step(_: object, announce: Announce) -> StepResult:
        announce(["a", "b"], progress)
        log.append("step")
        announce(["a", "b"], [])
        return StepResult()

    engine.step = step
    worker._step(engine)
    names = ["a", "b", "compiled"]
    assert log == [names, progress, "step", names]


def test_what_is_raised_for_one_message_ends_its_request_and_the_worker_goes_on() -> None:
    told: list[messages.FromWorker] = []
    running = Mock()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    model = SimpleNamespace(eos_token_ids=frozenset())
    engine = SimpleNamespace(add=fail, abort=fail, compiling_ids=["compiled"], model=model)
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox, context.socket(zmq.PUSH) as outbox:
        worker = Worker(inbox, outbox, running, Heart(context, ""), os.getpid())
        worker._send = told.extend
        worker._waiting.add(call_of([submit("begun", [5])]))
        worker._begin_requests(engine)
        worker._abort(engine, "left")
    sentence = "The engine failed while running this request (ZeroDivisionError)."
    running.write.assert_called_once_with(["begun", "compiled"])
    assert told == [
        Failed(request_id=request_id, message=sentence, code="broken_part") for request_id in ("begun", "left")
    ]


class Clock:
    """Stands for `time`. What it wraps takes a millisecond a call."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def slow(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: object) -> Any:
            self._now += 0.001
            return work(*arguments)

        return run


def test_a_round_takes_messages_and_begins_requests_for_a_few_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("decoding.worker.worker.time", clock)
    calls = [
        call_of([msgspec.structs.replace(submit(f"{key}{number}-{choice}", [5]), tenant=key) for choice in range(10)])
        for key in "ab"
        for number in range(5)
    ]
    frames = [msgspec.msgpack.encode(call) for call in calls]
    begun: list[str] = []
    inbox = SimpleNamespace(poll=lambda _: len(frames), recv=clock.slow(lambda: frames.pop(0)))
    worker = Worker(inbox, Mock(), Mock(), Heart(None, ""), os.getpid())  # type: ignore[arg-type]
    engine: Any = SimpleNamespace(
        has_work=True,
        compiling_ids=[],
        has_prompts_to_keep=False,
        model=SimpleNamespace(eos_token_ids=frozenset()),
        add=clock.slow(lambda request: begun.append(request.id)),
    )
    taken, started = [], []
    while len(begun) < 100:
        left, before = len(frames), len(begun)
        worker._take_messages(engine, Mock())
        worker._begin_requests(engine)
        taken.append(left - len(frames))
        started.append(len(begun) - before)
        assert started[-1] > 0
    most = round(1000 * TAKE_SECONDS) + 1  # the last one begins before the time is over
    assert max(taken) <= most
    assert max(started) <= most
    from_b = next(number for number, request_id in enumerate(begun) if request_id[0] == "b")
    assert from_b < 10, "key b waits for no more than what had begun when its first call came"
    assert [request_id[0] for request_id in begun[from_b : from_b + 40]] == ["b", "a"] * 20


def test_a_worker_that_breaks_says_so_before_it_leaves(model_folder: Path, tmp_path: Path) -> None:
    worker = started(model_folder, tmp_path)
    try:
        worker.hear_until_ready()
        worker.tell_bytes(b"no message")
        assert worker.hear() == messages.Broke(error="the engine broke (ValidationError)")
        assert worker.process.wait(PATIENCE_MS / 1000) == 1
    finally:
        worker.close()
