"""One life of the worker process: start it, pass frames both ways, notice its end, stop it.

Owns the process, its two sockets and their folder; knows nothing of requests or of restarting. Each life has
fresh sockets, so a frame can never reach the wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import zmq

from decoding.config import EngineConfig
from decoding.worker.messages import Batch, Beat, Drain, ToWorker

WORKER_COMMAND = (sys.executable, "-m", "decoding.worker")
LAST_WORDS_SECONDS = 0.3  # how long frames may still arrive after the process has ended
TERMINATE_SECONDS = 2.0

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Batch)


class Pulse:
    """busy_seconds: how long the worker's loop has been at its present round, as last heard.

    Seconds of silence are counted by whoever calls `tick` once a second, so that they are seconds in which this process
    could have heard something: one that was stopped itself does not blame the worker.
    """

    def __init__(self) -> None:
        self.busy_seconds = 0.0
        self._num_silent = 0

    def hear(self, batch: Batch) -> None:
        self._num_silent = 0
        for message in batch.messages:
            if isinstance(message, Beat):
                self.busy_seconds = message.busy_seconds

    def tick(self) -> int:
        """A second has passed; the seconds since anything was heard."""
        self._num_silent += 1
        return self._num_silent


class WorkerProcess:
    """Started by `start`, then `load`; `listen` until the process has ended; `close` must be called at last.

    verdict: what it was killed for, if it was.
    """

    def __init__(self, process: asyncio.subprocess.Process, sockets: _Sockets) -> None:
        self._process = process
        self._sockets = sockets
        self.pulse = Pulse()
        self.verdict: str | None = None

    @classmethod
    async def start(cls, command: Sequence[str]) -> WorkerProcess:
        sockets = _Sockets()
        try:
            arguments = {
                "--inbox": sockets.inbox,
                "--outbox": sockets.outbox,
                "--parent": str(os.getpid()),
            }
            process = await asyncio.create_subprocess_exec(
                *command,
                *chain.from_iterable(arguments.items()),
                stdin=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is the server's to handle: it drains first
            )
        except BaseException:
            sockets.close()
            raise
        return cls(process, sockets)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def load(self, config: EngineConfig) -> None:
        """Have it load the model, which it imports for and then waits with."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(config) + b"\n")
        self._process.stdin.close()

    def send(self, message: ToWorker) -> bool:
        """Hand over without waiting; False if the worker is not there to take it."""
        try:
            self._sockets.push.send(_ENCODER.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    async def listen(self, on_batch: Callable[[Batch], None]) -> int:
        """Hand over everything the worker says, to its last words; its exit status.

        Raises msgspec.DecodeError on a frame that is not ours. Frames come by callback from the event loop: a task
        woken by a future for each would cost more than all the rest.
        """
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                for frame in self._sockets.waiting_frames():
                    batch = _DECODER.decode(frame)
                    self.pulse.hear(batch)
                    on_batch(batch)
            except Exception as error:
                loop.remove_reader(self._sockets.pull)
                if not failed.done():
                    failed.set_exception(error)

        loop.add_reader(self._sockets.pull, read)
        exited = asyncio.ensure_future(self._process.wait())
        waiting: set[asyncio.Future[Any]] = {exited, failed}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not failed.done():
                await asyncio.wait({failed}, timeout=LAST_WORDS_SECONDS)
        finally:
            loop.remove_reader(self._sockets.pull)
            exited.cancel()
        if failed.done():
            failed.result()
        return await self._process.wait()

    async def stop(self, seconds: float) -> None:
        """Ask it to leave, then insist. Returns when the process is gone."""
        if seconds > 0 and self.send(Drain()) and await self._has_ended(seconds):
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        if not await self._has_ended(TERMINATE_SECONDS):
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    def kill(self, verdict: str) -> None:
        """End it without asking; `listen` returns soon."""
        self.verdict = verdict
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def close(self) -> None:
        self._sockets.close()

    async def _has_ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._process.wait()
        except TimeoutError:
            return False
        return True


class _Sockets:
    """Two bound sockets in a folder that only this user can enter."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gander-"))
        self.inbox, self.outbox = f"ipc://{self._folder}/inbox", f"ipc://{self._folder}/outbox"
        self._context = zmq.Context()
        self.push = self._context.socket(zmq.PUSH)
        self.pull = self._context.socket(zmq.PULL)
        self.push.set_hwm(0)  # what waits here is bounded by the requests the client lets in
        self.pull.set_hwm(0)
        self.push.bind(self.inbox)
        self.pull.bind(self.outbox)

    def waiting_frames(self) -> Iterator[bytes]:
        """What can be received without waiting. To be used up: the socket only signals news after that."""
        while True:
            try:
                yield self.pull.recv(zmq.NOBLOCK)
            except zmq.Again:
                return

    def close(self) -> None:
        self.push.close(linger=0)
        self.pull.close(linger=0)
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
