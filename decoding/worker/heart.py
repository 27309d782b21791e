"""The worker's heartbeat: a thread tells the server every second that the process lives, so that a long step does not
look like a hung process.

Owns a socket and a thread of its own. Knows of the worker's loop only when its present round began.
"""

from __future__ import annotations

import threading
import time

import msgspec
import zmq

from decoding.worker.messages import Batch, Beat

BEAT_SECONDS = 1.0


class Heart:
    """Beats from `start` to `stop`. The server listens at the address `outbox`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], outbox: str) -> None:
        self._context = context
        self._outbox = outbox
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart", daemon=True)
        self._round_started: float | None = None

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
                busy_seconds = 0.0 if started is None else time.monotonic() - started
                outbox.send(encoder.encode(Batch([Beat(busy_seconds=busy_seconds)])))
