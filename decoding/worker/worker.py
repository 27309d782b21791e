"""The worker process: it takes messages in, calls `Engine.step` and sends out what that says. Owns the engine.

The server starts it as `python -m decoding.worker`, see `arguments`. Invariant: while the process lives, every request
of a `Call` is answered by exactly one of Finished, Rejected, Failed, and between two steps no more than a few
milliseconds go to requests that come. What breaks the engine ends the process, and the server has another one go on
with its requests.
"""

from __future__ import annotations

import gc
import logging
import math
import signal
import time
from collections.abc import Sequence

import msgspec
import zmq
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from decoding.config import EngineConfig
from decoding.core.events import Finished, PromptProgress
from decoding.core.request import FinishReason
from decoding.core.stats import RequestStats, StepStats
from decoding.engine.compiling.kernels import Kernels
from decoding.engine.engine import Engine
from decoding.engine.fault import failed_by, rejected_by
from decoding.engine.start import load_engine
from decoding.errors import GanderError, RequestRejected
from decoding.kernels.cache import kernel_folder
from decoding.model.kept.measurements import KeptMeasurements
from decoding.process.parent import end_with_any, is_orphan
from decoding.worker import messages
from decoding.worker.allocator import give_back_memory
from decoding.worker.arguments import WorkerArguments
from decoding.worker.calls import Call
from decoding.worker.heart import Heart
from decoding.worker.inbox import Inbox
from decoding.worker.running_file import RunningFile
from decoding.worker.session_copies import SessionCopies
from decoding.worker.translation import ready_message, request_of, session_answer

IDLE_POLL_MS, KEEPING_POLL_MS = 200, 1  # the latter while prompts are still to be kept in files
TAKE_SECONDS = 0.003  # that messages may be taken in, and then requests be begun in, before the next step
CLOSE_SECONDS = 2.0  # that files of prompts may still take once nothing runs
IDLE_SECONDS = 20.0  # without work, after which memory is given back to the system
REPORT_SECONDS = 0.5  # between two reports; the last step before a rest is reported at once
COPY_SECONDS = 0.1  # at least, between two copies of sessions for the server
COPY_SHARE = 0.01  # of the worker's time that copies of sessions may take

logger = logging.getLogger("gander.worker")


class Worker:
    """The loop between two sockets. `outbox` never blocks: a slow reader's frames wait in memory.

    heart is told of every round, and running of the requests that the process is at. parent is the server's process id.
    """

    def __init__(
        self, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes], running: RunningFile, heart: Heart, parent: int
    ) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._decoder = msgspec.msgpack.Decoder(messages.ToWorker)
        self._encoder = msgspec.msgpack.Encoder()
        self._running = running
        self._heart = heart
        self._parent = parent
        self._is_draining = False
        self._waiting = Inbox()
        self._idle_since: float | None = None
        self._missing: list[str] = []
        self._untold: list[messages.FromWorker] = []  # what the last step said, and the server was not yet told
        self._steps: list[StepStats] = []
        self._next_report = 0.0
        self._next_copy = 0.0

    def serve(self, config: EngineConfig, kernels: Kernels) -> int:
        """Load the model, say Ready and run until drained or orphaned. Returns the process's exit status."""
        try:
            engine = load_engine(config, self._tell_progress, KeptMeasurements(kernel_folder()), kernels)
        except GanderError as error:
            self._send([messages.LoadFailed(error=str(error))])
            return 1
        end_with_any(engine.model.ranks)
        self._tell_missing(engine)
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it holds all streams up for tens of milliseconds
        self._send([ready_message(engine, config)])
        copies = SessionCopies(engine.sessions)
        while not is_orphan(self._parent) and not (self._is_draining and not self._has_work(engine)):
            self._heart.note_round()
            self._take_messages(engine, copies)
            self._begin_requests(engine)
            if engine.has_work:
                self._step(engine)
            else:
                self._rest(engine)
            self._report(engine)
            self._tell_missing(engine)
            self._keep_sessions(copies)
        engine.close(CLOSE_SECONDS)
        return 0

    def tell_broken(self, error: Exception) -> None:
        """Tell the kind of the exception that ends the process, and not what it says, which may quote a prompt."""
        self._send([messages.Broke(error=f"the engine broke ({type(error).__name__})")])

    def _step(self, engine: Engine) -> None:
        """Run a step. Send how far prompts are before it, and what it says at once, or while a device runs the next."""
        self._idle_since = None

        def announce(request_ids: list[str], progress: list[PromptProgress]) -> None:
            self._running.write([*request_ids, *engine.compiling_ids])
            if progress:
                self._send(progress)

        result = engine.step(self._tell, announce)
        self._untold = [*result.events]
        if not (engine.runs_ahead and engine.has_work):
            self._tell()
        if result.stats is not None:
            self._steps.append(result.stats)

    def _has_work(self, engine: Engine) -> bool:
        return engine.has_work or len(self._waiting) > 0

    def _take_messages(self, engine: Engine, copies: SessionCopies) -> None:
        """Take messages for a moment. Wait a little for the first one when there is nothing to do."""
        poll = KEEPING_POLL_MS if engine.has_prompts_to_keep else IDLE_POLL_MS
        timeout = 0 if self._has_work(engine) or self._is_draining else poll
        end = math.inf
        while time.monotonic() < end and self._inbox.poll(timeout):
            if timeout or end == math.inf:
                timeout, end = 0, time.monotonic() + TAKE_SECONDS
            match self._decoder.decode(self._inbox.recv()):
                case Call() as call:
                    self._waiting.add(call)
                case messages.Abort(request_id=request_id):
                    self._abort(engine, request_id)
                case messages.Drain():
                    self._is_draining = True
                case question:
                    self._answer(engine, copies, question)

    def _begin_requests(self, engine: Engine) -> None:
        """Begin requests for a moment, at least one. What is raised for one ends it alone."""
        end = time.monotonic() + TAKE_SECONDS
        while (submit := self._waiting.take()) is not None:
            try:
                self._running.write([submit.request_id, *engine.compiling_ids])
                engine.add(request_of(submit, engine.model.eos_token_ids))
            except RequestRejected as error:
                self._send([rejected_by(submit.request_id, error)])
            except Exception as error:
                self._send([failed_by(submit.request_id, error)])
            if time.monotonic() >= end:
                return

    def _abort(self, engine: Engine, request_id: str) -> None:
        choice = self._waiting.drop(request_id)
        if choice is not None:
            stats = RequestStats(prompt_tokens=choice.prompt_len, emitted=len(choice.resumed))
            self._send([Finished(request_id=request_id, reason=FinishReason.ABORT, stats=stats)])
            return
        try:
            if (finished := engine.abort(request_id)) is not None:
                self._send([finished])
        except Exception as error:
            self._send([failed_by(request_id, error)])

    def _rest(self, engine: Engine) -> None:
        """Nobody waits: measure a little, and give memory back to the system once it has been quiet for a while."""
        engine.on_idle()
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_SECONDS:
            give_back_memory()
            self._idle_since = math.inf  # until there was work again

    def _answer(self, engine: Engine, copies: SessionCopies, question: messages.SessionQuestion) -> None:
        if isinstance(question, messages.HandOver):
            while news := copies.take():
                self._send(news)
        self._send([session_answer(engine.sessions, question, engine.model.vocab_size)])

    def _report(self, engine: Engine) -> None:
        """Send the counts of the steps since the last report, if it is time to."""
        now = time.monotonic()
        is_at_rest = bool(self._steps) and not engine.has_work
        if is_at_rest or now >= self._next_report:
            steps, self._steps, self._next_report = self._steps, [], now + REPORT_SECONDS
            self._send([messages.StepReport(steps=steps, engine=engine.stats())])

    def _tell_missing(self, engine: Engine) -> None:
        """Tell which methods are still being compiled, whenever there are fewer of them."""
        missing = engine.missing_methods
        if missing != self._missing:
            self._missing = missing
            self._send([messages.Compiling(methods=missing)])

    def _keep_sessions(self, copies: SessionCopies) -> None:
        """Send a part of a session's copy, if it is time to. Copies take at most a hundredth of the worker's time."""
        started = time.monotonic()
        if started < self._next_copy:
            return
        self._send(copies.take())
        now = time.monotonic()
        self._next_copy = now + max(COPY_SECONDS, (now - started) / COPY_SHARE)

    def _tell_progress(self, sentence: str, fraction: float) -> None:
        self._send([messages.LoadProgress(sentence=sentence, fraction=fraction)])

    def _tell(self) -> None:
        """Send what the last step said, if that is still to be sent."""
        self._send([])

    def _send(self, news: Sequence[messages.FromWorker]) -> None:
        """Send messages after what the last step said."""
        batch, self._untold = [*self._untold, *news], []
        if batch:
            self._outbox.send(self._encoder.encode(messages.Batch(batch)))


def run(arguments: WorkerArguments, config_json: str, kernels: Kernels) -> int:
    """Serve until drained, orphaned or broken. Returns the process's exit status."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    disable_progress_bar()  # of transformers; the server shows our own
    set_verbosity_error()  # of transformers; we say in a sentence what is wrong with a model
    for number in (signal.SIGINT, signal.SIGTERM):  # which systemd sends to all; the server handles them and drains us
        signal.signal(number, signal.SIG_IGN)
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    outbox.setsockopt(zmq.SNDHWM, 0)
    outbox.setsockopt(zmq.LINGER, 2000)
    inbox.bind(arguments.inbox)
    outbox.connect(arguments.outbox)
    heart = Heart(context, arguments.outbox)
    heart.start()
    config = msgspec.json.decode(config_json, type=EngineConfig)
    worker = Worker(inbox, outbox, RunningFile(arguments.running), heart, arguments.parent)
    try:
        return worker.serve(config, kernels)
    except Exception as error:
        logger.exception("the engine broke; another worker goes on with what it ran")
        worker.tell_broken(error)
        return 1
    finally:
        heart.stop()
        inbox.close(linger=0)
        outbox.close()
        context.term()
