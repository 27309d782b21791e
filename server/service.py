"""What the routes share: settings, the engine's client, the tokenizer, the metrics; and whether they can serve.

Owns the start-up of both halves (worker and tokenizer), which happens behind an already open port.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace

from starlette.requests import HTTPConnection

from decoding.worker.messages import Ready
from server.config import ServerSettings
from server.engine_client.client import EngineClient, EngineStatus
from server.http.errors import ApiError, unavailable
from server.http.keys import KeyRing
from server.metrics.metrics import Metrics
from server.prompts.chat_template import ChatTemplate, load_chat_template
from server.prompts.model_files import ModelFiles
from server.prompts.tokenizer import Tokenizer, load_tokenizer

LOG = logging.getLogger("gander.service")
RETRY_AFTER = 2  # seconds; a start takes about that many times a few


@dataclass(slots=True)
class Service:
    settings: ServerSettings
    client: EngineClient
    metrics: Metrics
    keys: KeyRing
    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    tokenizer_error: str | None = None
    created: int = 0
    _loading: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.created = int(time.time())
        self.client.start()
        self._loading = asyncio.create_task(self._load_tokenizer(), name="tokenizer")

    def begin_drain(self) -> None:
        self.client.begin_drain(self.settings.drain_seconds)

    async def close(self) -> None:
        await self.client.close(self.settings.drain_seconds)
        if self._loading is not None:
            await self._loading

    @property
    def status(self) -> EngineStatus:
        """The engine's, unless the tokenizer holds things up."""
        status = self.client.status
        if self.tokenizer_error is not None:
            return replace(status, state="failed", sentence=self.tokenizer_error)
        if status.state == "ready" and self.tokenizer is None:
            return replace(status, state="loading", sentence="loading the tokenizer")
        return status

    def require_ready(self) -> tuple[Tokenizer, Ready]:
        """Raise ApiError 503 unless requests can be served now."""
        status = self.status
        if status.state != "ready" or self.tokenizer is None or self.client.ready is None:
            message = f"The engine is not ready: {status.sentence}."
            raise unavailable(message, f"engine_{status.state}", RETRY_AFTER)
        return self.tokenizer, self.client.ready

    def require_model(self, name: str | None) -> str:
        """The served model's id. Raises ApiError 404 for any other."""
        served = self.settings.model_name
        if name is None or name == served:
            return served
        message = f"The model '{name}' does not exist here; this server has '{served}'."
        raise ApiError(404, message, "model", "model_not_found")

    async def _load_tokenizer(self) -> None:
        settings = self.settings
        files = ModelFiles(settings.model, settings.revision)
        try:
            self.chat_template = await asyncio.to_thread(load_chat_template, files, settings.chat_template)
            self.tokenizer = await asyncio.to_thread(load_tokenizer, files, settings.trust_remote_code)
        except Exception as error:
            LOG.debug("The tokenizer of %s cannot be loaded.", settings.model, exc_info=True)
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            self.tokenizer_error = f"the tokenizer of {settings.model} cannot be loaded: {reason}"
        self.client.on_status(self.status)


def service_of(connection: HTTPConnection) -> Service:
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
