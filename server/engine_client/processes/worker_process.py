"""One worker process from its start to its end: frames are passed both ways, and its end is noticed or brought about.

Owns the process and the folder of its two sockets and its `RunningFile`; knows nothing of requests or of restarting.
Each process has a folder of its own, so a frame can never reach the wrong process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec
import zmq

from decoding.config import EngineConfig
from decoding.process.temporary_folder import TemporaryFolder
from decoding.worker.messages import Batch, Beat, Drain, ToWorker
from decoding.worker.running_file import read_running

LOG = logging.getLogger("gander.client")
WORKER_COMMAND = (sys.executable, "-m", "decoding.worker")
LAST_WORDS_SECONDS = 0.3  # that frames may still arrive in after the process has ended
KILLED_SECONDS = 2.0  # that it has to end in

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Batch)


class Pulse:
    """busy_seconds is how long the worker's loop has been at its present round, and still_seconds how long its load has
    stood still, as the worker last said.

    The seconds of silence are counted by calls of `tick`, one a second. So they are seconds in which this process could
    have heard something, and a server that was itself stopped does not blame the worker.
    """

    def __init__(self) -> None:
        self.busy_seconds = self.still_seconds = 0.0
        self._num_silent = 0

    def hear(self, batch: Batch) -> None:
        self._num_silent = 0
        for message in batch.messages:
            if isinstance(message, Beat):
                self.busy_seconds, self.still_seconds = message.busy_seconds, message.still_seconds

    def tick(self) -> int:
        """Note that a second has passed. Returns the seconds since anything was heard."""
        self._num_silent += 1
        return self._num_silent


class WorkerProcess:
    """Call `start`, `load` and `listen`, which returns when the process has ended. `close` must be called at last.

    verdict says what the process was killed for, if it was.
    """

    def __init__(self, process: asyncio.subprocess.Process, channel: _Channel) -> None:
        self._process = process
        self._channel = channel
        self.pulse = Pulse()
        self.verdict: str | None = None

    @classmethod
    async def start(cls, command: Sequence[str]) -> WorkerProcess:
        """Raises OSError where no process can be started, or none be spoken to."""
        try:
            channel = _Channel()
        except zmq.ZMQError as error:
            raise OSError(error.errno, error.strerror) from error
        try:
            arguments = {
                "--inbox": channel.inbox,
                "--outbox": channel.outbox,
                "--running": str(channel.running.fileno()),
                "--parent": str(os.getpid()),
            }
            process = await asyncio.create_subprocess_exec(
                *command,
                *chain.from_iterable(arguments.items()),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(channel.running.fileno(),),
                start_new_session=True,  # so that Ctrl-C reaches the server alone, which drains first
            )
        except BaseException:
            channel.close()
            raise
        return cls(process, channel)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def exit_status(self) -> int | None:
        return self._process.returncode

    def load(self, config: EngineConfig) -> None:
        """Tell the process, which has imported everything or is about to, what model to load."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._process.stdin.close()

    def send(self, message: ToWorker) -> None:
        """Send a message without waiting. It lies here until the worker takes it."""
        self._channel.push.send(_ENCODER.encode(message), zmq.NOBLOCK)

    async def listen(self, on_batch: Callable[[Batch], None]) -> int:
        """Hand on everything that the worker says until it has ended. Returns its exit status.

        Raises msgspec.DecodeError on a frame that is not ours. The event loop calls back for each frame, since waking a
        task by a future for each would cost more than all the rest.
        """
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                for frame in self._channel.waiting_frames():
                    batch = _DECODER.decode(frame)
                    self.pulse.hear(batch)
                    on_batch(batch)
            except Exception as error:
                loop.remove_reader(self._channel.pull)
                if not failed.done():
                    failed.set_exception(error)

        loop.add_reader(self._channel.pull, read)
        exited = asyncio.ensure_future(self._process.wait())
        waiting: set[asyncio.Future[Any]] = {exited, failed}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                await asyncio.wait({failed}, timeout=LAST_WORDS_SECONDS)
        finally:
            loop.remove_reader(self._channel.pull)
            exited.cancel()
        if failed.done():
            failed.result()
        return await self._process.wait()

    def running(self) -> frozenset[str]:
        """Ids of the requests that the process is at, or was at when it ended."""
        return read_running(self._channel.running.fileno())

    async def stop(self, seconds: float) -> None:
        """Ask the process to leave, and end it if it has not left in so many seconds. Returns when it is gone, or
        cannot be ended."""
        if seconds > 0:
            self.send(Drain())
            if await self._has_ended(seconds):
                return
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        if not await self._has_ended(KILLED_SECONDS):
            LOG.error("Process %d was killed and is still there.", self.pid)

    def kill(self, verdict: str) -> None:
        """End the process without asking. `listen` returns soon after."""
        self.verdict = verdict
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        self._channel.close()

    async def _has_ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True


class _Channel:
    """Two sockets and the file of what runs, in a folder that only this user can enter.

    The one that receives is bound. The one that sends is connected: so it takes messages from the start, where a bound
    one refuses them until the other side is there, which may be after the first thing heard of it.
    """

    def __init__(self) -> None:
        self._folder = TemporaryFolder("gander-worker-")
        path = self._folder.path
        self.inbox, self.outbox = f"ipc://{path}/inbox", f"ipc://{path}/outbox"
        self.running = (path / "running").open("w+b")
        # The server's one, which is never ended: that could block the event loop.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self.push, self.pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
        self.push.set_hwm(0)  # the limits of the queue bound what waits here
        self.pull.set_hwm(0)
        try:
            self.pull.bind(self.outbox)
            self.push.connect(self.inbox)
        except zmq.ZMQError:
            self.close()
            raise

    def waiting_frames(self) -> Iterator[bytes]:
        """What can be received without waiting. The caller must exhaust it, since the socket signals news only then."""
        while True:
            try:
                yield self.pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return

    def close(self) -> None:
        self.push.close(linger=0)
        self.pull.close(linger=0)
        self.running.close()
        self._folder.close()
