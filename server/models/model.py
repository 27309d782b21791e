"""One model of a server: its settings, the client of its workers, and while it is loaded its tokenizer and template.

Owns its state: absent, then loading, ready or failed as its workers and its files have it, then unloading. Knows
nothing of other models, nor of when it is to be loaded. Invariant: `status` tells the whole truth, whoever asks.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Literal

from decoding.errors import ConfigError
from server.config import ServerSettings
from server.engine_client.client import EngineClient
from server.engine_client.status import EngineStatus, OnStatus
from server.metrics.metrics import ModelMetrics
from server.models.log_names import LOGGED_MODEL
from server.models.prompt_files import load_prompts
from server.models.residency import Residency
from server.prompts.chat_template import ChatTemplate
from server.prompts.served_model import ServedModel, takes_pictures
from server.prompts.tokenizer import Tokenizer
from server.schemas.catalog import Modality
from server.settings.live import QUEUE_LIMITS, taken_up

Stage = Literal["absent", "queued", "running", "unloading", "draining"]
SETTLED = ("ready", "failed", "draining")
SENTENCES = {
    "absent": "not loaded; its first request loads it",
    "unloading": "giving its memory back",
    "draining": "stopping",
}


class Model:
    """needed_bytes: of memory, as far as is known before it is loaded. is_preloaded: whether it is loaded when the
    server starts. is_named: whether the log tells its name. loading: the task that loads it, of whoever owns when."""

    def __init__(
        self,
        settings: ServerSettings,
        client: EngineClient,
        metrics: ModelMetrics,
        residency: Residency,
        needed_bytes: int = 0,
        is_preloaded: bool = True,
        is_named: bool = False,
    ) -> None:
        self.settings = settings
        self.client = client
        self.metrics = metrics
        self.residency = residency
        self.needed_bytes = needed_bytes
        self.is_preloaded = is_preloaded
        self.log_name = settings.model_name if is_named else ""
        self.created = int(time.time())
        self.tokenizer: Tokenizer | None = None
        self.chat_template: ChatTemplate | None = None
        self.loading: asyncio.Task[None] | None = None
        self.has_settled = False  # once ready, or given up, since the server started
        self._stage: Stage = "absent"
        self._waiting = ""  # what it waits for before it is loaded
        self._loading_error: str | None = None
        self._settled = asyncio.Event()
        self._listeners: list[OnStatus] = []
        client.subscribe(lambda _: self._tell())
        metrics.watch(client, lambda: self.status)

    @property
    def name(self) -> str:
        return self.settings.model_name

    @property
    def is_running(self) -> bool:
        """Whether it is loaded or being loaded, or was given up."""
        return self._stage == "running"

    @property
    def is_loaded(self) -> bool:
        """Whether its workers take memory."""
        return self._stage == "running" and self.status.state != "failed"

    @property
    def status(self) -> EngineStatus:
        """The workers' status; "failed" or "loading" where tokenizer or chat template failed or are not loaded yet."""
        if self._stage == "queued":
            return EngineStatus(state="loading", sentence=self._waiting)
        if self._stage != "running":
            return EngineStatus(state=self._stage, sentence=SENTENCES[self._stage])
        status = self.client.status
        if self._loading_error is not None:
            return replace(status, state="failed", sentence=self._loading_error)
        if status.state == "ready" and self.tokenizer is None:
            return replace(status, state="loading", sentence="loading the tokenizer")
        return status

    @property
    def input_modalities(self) -> list[Modality] | None:
        """What prompts may have; None before it is loaded."""
        if (engine := self.client.ready) is None:
            return None
        return ["text", "image"] if takes_pictures(engine, self.tokenizer) else ["text"]

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def served(self, name: str | None = None, waited: float = 0.0) -> ServedModel | None:
        """The model as a request sees it that calls it so and has waited for so many seconds; None unless it is
        ready."""
        engine = self.client.ready
        if self.status.state != "ready" or self.tokenizer is None or engine is None:
            return None
        return ServedModel(name or self.name, self.tokenizer, self.chat_template, engine, self.settings, waited)

    def queue(self, sentence: str) -> None:
        """Note what it waits for before it is loaded."""
        self._stage, self._waiting = "queued", sentence
        self._tell()

    async def load(self) -> None:
        """Start the workers and load the text's part. Returns once it is ready or has failed."""
        LOGGED_MODEL.set(self.log_name)
        self._loading_error = None
        self._settled.clear()
        self._stage = "running"
        self.client.start()
        has_prompts = await self._load_prompts()
        await self._settled.wait()
        if not has_prompts:
            await self.client.rest()  # whose workers may have loaded what nobody can ask for

    async def unload(self) -> None:
        """Give the memory back. It has no requests."""
        self._stage = "unloading"
        self._tell()
        await self.client.rest()
        self._drop_prompts()
        if self._stage == "unloading":  # and no drain has begun
            self._stage = "absent"
        self._tell()

    def take_up(self, wanted: ServerSettings) -> None:
        """Have the settings that a running server can change be as they are wanted."""
        self.settings = taken_up(self.settings, wanted)
        limits = {name: getattr(wanted, name) for name in QUEUE_LIMITS}
        self.client.take_up(replace(self.client.limits, **limits), wanted.keep_alive_seconds)

    def begin_drain(self, seconds: float) -> None:
        """Take no more requests, and do not load what has not begun to."""
        if self.loading is not None and not self.is_loaded:
            self.loading.cancel()
        if self._stage != "running":
            self._stage = "draining"
        self.client.begin_drain(seconds)
        self._tell()

    async def close(self, seconds: float, leave_seconds: float) -> None:
        """Stop for good. See `EngineClient.close`."""
        await self.client.close(seconds, leave_seconds)
        if self.loading is not None:  # which ends, since it drains
            await asyncio.gather(self.loading, return_exceptions=True)
        self._drop_prompts()

    async def _load_prompts(self) -> bool:
        """Whether tokenizer and chat template can be loaded."""
        try:
            self.chat_template, self.tokenizer = await asyncio.to_thread(load_prompts, self.settings)
        except ConfigError as error:
            self._loading_error = str(error)
        self._tell()
        return self._loading_error is None

    def _drop_prompts(self) -> None:
        if self.chat_template is not None:
            self.chat_template.close()
        self.chat_template = self.tokenizer = None

    def _tell(self) -> None:
        status = self.status
        if self._stage == "running" and status.state in SETTLED:
            self.has_settled = True
            self._settled.set()
        for listener in self._listeners:
            listener(status)
