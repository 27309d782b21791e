"""One life of the worker process: start it, pass frames both ways, notice its end, stop it.

Owns the process, its two sockets and their folder; knows nothing of requests or of restarting. Each life has
fresh sockets, so a frame can never reach the wrong one.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from decoding.config import EngineConfig
from decoding.messages import Batch, Drain, ToWorker

WORKER_COMMAND = (sys.executable, "-m", "decoding.worker")
LAST_WORDS_SECONDS = 0.3  # how long frames may still arrive after the process has ended
TERMINATE_SECONDS = 2.0

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Batch)


class WorkerProcess:
    """Started by `start`; `frames` yields until the process has ended; `close` must be called at last."""

    def __init__(self, process: asyncio.subprocess.Process, sockets: _Sockets) -> None:
        self._process = process
        self._sockets = sockets

    @classmethod
    async def start(cls, command: Sequence[str], config: EngineConfig) -> WorkerProcess:
        sockets = _Sockets()
        try:
            arguments = ("--inbox", sockets.inbox, "--outbox", sockets.outbox)
            process = await asyncio.create_subprocess_exec(
                *command,
                *arguments,
                "--config",
                msgspec.json.encode(config).decode(),
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the server's to handle: it drains first
            )
        except BaseException:
            sockets.close()
            raise
        return cls(process, sockets)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, message: ToWorker) -> bool:
        """Hand over without waiting; False if the worker is not there to take it."""
        try:
            self._sockets.push.send(_ENCODER.encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    async def frames(self) -> AsyncIterator[Batch]:
        """Everything the worker says, to its last words. Raises msgspec.DecodeError on a frame that is not ours."""
        exited = asyncio.ensure_future(self._process.wait())
        receiving: asyncio.Future[bytes] | None = None
        try:
            while True:
                receiving = receiving or asyncio.ensure_future(self._sockets.pull.recv())
                patience = LAST_WORDS_SECONDS if exited.done() else None
                waiting = {receiving} if exited.done() else {receiving, exited}
                await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if receiving.done():
                    frame, receiving = receiving.result(), None
                    yield _DECODER.decode(frame)
                elif patience is not None:
                    return
        finally:
            exited.cancel()
            if receiving is not None:
                receiving.cancel()

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

    async def exit_status(self) -> int:
        return await self._process.wait()

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
        self._context = zmq.asyncio.Context()
        self.push: zmq.Socket[bytes] = self._context.socket(zmq.PUSH, socket_class=zmq.Socket)
        self.pull: zmq.asyncio.Socket = self._context.socket(zmq.PULL)
        for socket, address in ((self.push, self.inbox), (self.pull, self.outbox)):
            socket.set_hwm(0)  # what waits here is bounded by the requests the client lets in
            socket.bind(address)

    def close(self) -> None:
        self._context.destroy(linger=0)
        shutil.rmtree(self._folder, ignore_errors=True)
