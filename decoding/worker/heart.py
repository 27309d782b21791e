"""The worker's heartbeat: a thread tells the server every second that the process lives, so that a long step does not
look like a hung process.

Owns a socket and a thread of its own. Knows of the worker's loop only when its present round began, and of a load only
whether it uses the processor.
"""

from __future__ import annotations

import threading
import time

import msgspec
import zmq

from decoding.worker.messages import Batch, Beat

BEAT_SECONDS = 1.0
STILL_SECONDS = 1.0  # of processor time, within which a load is taken to stand still


class Heart:
    """Beats from `start` to `stop`. The server listens at the address `outbox`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], outbox: str) -> None:
        self._context = context
        self._outbox = outbox
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._round_started: float | None = None
        self._load = Load()

    def start(self) -> None:
        self._thread.start()

    def note_round(self) -> None:
        """Note that the worker's loop begins a round now."""
        self._round_started = time.monotonic()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        encoder = msgspec.msgpack.Encoder()
        with self._context.socket(zmq.PUSH) as outbox:
            outbox.linger = 0
            outbox.connect(self._outbox)
            while not self._is_over.wait(BEAT_SECONDS):
                started = self._round_started
                now, used = time.monotonic(), time.process_time() - time.thread_time()  # by the other threads
                if started is None:
                    beat = Beat(busy_seconds=0.0, still_seconds=self._load.still_seconds(now, used))
                else:
                    beat = Beat(busy_seconds=now - started)
                outbox.send(encoder.encode(Batch([beat])))


class Load:
    """What a start has used of the processor: one that downloads, reads, computes or compiles here uses some."""

    def __init__(self) -> None:
        self._moved: tuple[float, float] | None = None  # when it last moved on, and what it had used by then

    def still_seconds(self, now: float, used: float) -> float:
        """How long it has stood still. now: on a clock; used: processor time until now. Both in seconds."""
        if self._moved is None or used - self._moved[1] >= STILL_SECONDS:
            self._moved = now, used
        return now - self._moved[0]
