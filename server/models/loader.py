"""Loads and unloads models: at their first request or when asked, one at a time, as number and memory allow.

Owns when a model comes and goes; what it is when it is there, `Model` knows. Invariant: no model is unloaded while a
request waits for it or runs on it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from decoding.process.machine import memory_left
from server.engine_client.status import EngineStatus
from server.http.errors import ApiError, unavailable
from server.models.model import Model
from server.models.residency import Room, makes_way

LOG = logging.getLogger("gander.models")
RETRY_AFTER = 2  # seconds that a client is told to wait while a model starts
FAILED_SECONDS = 30.0  # for which a model that could not be loaded is not tried again


class Loader:
    """Call `start`, and `close` at last. most: models that may be loaded at a time. free_bytes: see `memory_left`."""

    def __init__(
        self,
        models: Sequence[Model],
        most: int | None = None,
        free_bytes: Callable[[], int | None] = memory_left,
    ) -> None:
        self._models = models
        self._most = most
        self._free_bytes = free_bytes
        self._turn = asyncio.Lock()  # of whoever loads or unloads
        self._released = asyncio.Event()
        self._failed_at: dict[Model, float] = {}
        self._timers: dict[Model, asyncio.TimerHandle] = {}
        self._unloading: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        for model in models:
            model.subscribe(partial(self._note, model))

    def start(self) -> None:
        """Load the models that are to be there from the start."""
        for model in self._models:
            if model.is_preloaded:
                self.begin(model)

    @contextmanager
    def use(self, model: Model, keep_alive: float | None = None) -> Iterator[None]:
        """Keep a model loaded, once it is, until the block ends; then for so many seconds, or for those of its own."""
        model.residency.begin_use()
        self._disarm(model)
        try:
            yield
        finally:
            model.residency.end_use(time.monotonic(), keep_alive)
            self._released.set()
            self._arm(model)

    async def ready(self, model: Model, seconds: float | None = None) -> None:
        """Return once a model that the caller uses is ready. It is loaded where it is not, and waited for; only while
        the server starts with it nobody waits. Raises ApiError 503, also after so many seconds."""
        status = model.status
        if status.state == "failed":
            self._require_pause_over(model)
        if status.state in ("absent", "unloading", "failed"):
            self.begin(model)
        is_start = model.is_preloaded and not model.has_settled
        if model.loading is not None and not is_start:
            await asyncio.wait({model.loading}, timeout=seconds)
            if not model.loading.done():
                message = f"The model '{model.name}' was not loaded within {seconds:g} s: {model.status.sentence}."
                raise unavailable(message, "model_loading", RETRY_AFTER)
        if model.status.state != "ready":
            raise not_ready(model.status)

    def begin(self, model: Model) -> None:
        """Load a model, unless it is being loaded."""
        model.residency.is_leaving = False
        if not self._is_stopping and (model.loading is None or model.loading.done()):
            if not model.is_running:
                model.queue("waiting for its turn to be loaded")
            model.loading = asyncio.create_task(self._load(model), name=f"loading {model.name}")

    def unload(self, model: Model) -> None:
        """Unload a model as soon as no request uses it."""
        model.residency.leave(time.monotonic())
        self._arm(model)

    def begin_drain(self, seconds: float) -> None:
        """Load no more, and take no more requests. Those that run have so many seconds to end."""
        self._is_stopping = True
        for model in self._models:
            self._disarm(model)
            model.begin_drain(seconds)

    async def close(self, seconds: float, leave_seconds: float) -> None:
        """Stop all models. See `EngineClient.close`."""
        self.begin_drain(seconds)
        await asyncio.gather(*self._unloading, return_exceptions=True)
        await asyncio.gather(*(model.close(seconds, leave_seconds) for model in self._models))

    async def _load(self, model: Model) -> None:
        async with self._turn:
            if model.is_loaded:
                return
            if model.is_running:  # given up
                await model.unload()
            await self._make_room(model)
            await model.load()
        if not model.residency.num_uses:
            model.residency.touch(time.monotonic())
            self._arm(model)

    async def _make_room(self, model: Model) -> None:
        """Unload others until there is room, the least recently used first; wait where all are in use."""
        while loaded := [each for each in self._models if each.is_loaded and each is not model]:
            room = Room(self._most, self._free_bytes())
            if room.has(len(loaded), model.needed_bytes):
                return
            idle = makes_way(each.residency for each in loaded)
            if idle is None:
                self._released.clear()
                model.queue("waiting until a model that others use makes way")
                await self._released.wait()
                continue
            victim = next(each for each in loaded if each.residency is idle)
            LOG.info("The model %s makes way for %s.", victim.name, model.name)
            self._disarm(victim)
            await victim.unload()

    def _arm(self, model: Model) -> None:
        """Unload the model when it is due."""
        self._disarm(model)
        if model.is_running and not self._is_stopping and model.residency.due < math.inf:
            due = model.residency.due
            seconds = max(0.0, due - time.monotonic())
            self._timers[model] = asyncio.get_running_loop().call_later(seconds, self._expire, model, due)

    def _disarm(self, model: Model) -> None:
        timer = self._timers.pop(model, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, model: Model, due: float) -> None:
        task = asyncio.create_task(self._unload(model, due), name=f"unloading {model.name}")
        self._unloading.add(task)
        task.add_done_callback(self._unloading.discard)

    async def _unload(self, model: Model, due: float) -> None:
        """Unload a model, unless it has been used since it was to be."""
        async with self._turn:
            if model.is_loaded and model.residency.due == due and not self._is_stopping:
                LOG.info("The model %s is unloaded, as nobody uses it.", model.name)
                await model.unload()

    def _note(self, model: Model, status: EngineStatus) -> None:
        """Note when a model failed."""
        if status.state != "failed":
            self._failed_at.pop(model, None)
        elif model not in self._failed_at:
            self._failed_at[model] = time.monotonic()
            if len(self._models) > 1:  # else what the server ends with says so
                LOG.error("The model %s cannot be served: %s.", model.name, status.sentence.rstrip("."))

    def _require_pause_over(self, model: Model) -> None:
        """Raise ApiError while it is too early to load a model again that has failed."""
        left = self._failed_at[model] + FAILED_SECONDS - time.monotonic()
        if left > 0:
            raise not_ready(model.status, math.ceil(left))


def not_ready(status: EngineStatus, retry_after: int = RETRY_AFTER) -> ApiError:
    return unavailable(f"The engine is not ready: {status.sentence}.", f"engine_{status.state}", retry_after)
