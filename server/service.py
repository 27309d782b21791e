"""What all routes share: the server's settings, its models, keys, metrics and stored responses.

Owns the start and the end of all of them; what is one model's, `Model` has.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Semaphore
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request

from server.config import ServerSettings, SettingSources
from server.engine_client.client import LEAVE_SECONDS
from server.engine_client.processes.standby import Standby
from server.engine_client.status import EngineStatus, OnStatus
from server.generation.response_store import ResponseStore
from server.http.body import read_body
from server.http.errors import ApiError
from server.http.holds import hold
from server.http.idle_memory import give_back_when_idle
from server.http.keys import KeyRing
from server.http.sse import until_disconnect
from server.http.work.work_pool import WorkPool
from server.metrics.server_metrics import ServerMetrics
from server.models.catalogue import Catalogue
from server.models.loader import Loader, not_ready
from server.models.log_names import LOGGED_MODEL
from server.models.model import Model
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.images.fetching import ImageFetcher
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.settings.file import key_of
from server.settings.live import Reloaded, reloaded, taken_up

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

LOG = logging.getLogger("gander.service")
CLIENTS_TEMPLATES = 2  # that requests bring, rendered at a time

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(slots=True)
class Service:
    """settings: the server's own; each model has its own."""

    settings: ServerSettings
    models: Catalogue
    loader: Loader
    standby: Standby
    metrics: ServerMetrics
    keys: KeyRing
    responses: ResponseStore
    tracing: TracerProvider | None = None
    sources: SettingSources | None = None
    pool: WorkPool = field(default_factory=WorkPool)
    fetcher: ImageFetcher = field(default_factory=ImageFetcher)
    clients_templates: Semaphore = field(default_factory=lambda: Semaphore(CLIENTS_TEMPLATES))
    _leave_seconds: float = LEAVE_SECONDS
    _giving: asyncio.Task[None] | None = None
    _listeners: list[OnStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        for model in self.models:
            model.subscribe(lambda _: self._tell())

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of the server's status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self.loader.start()
        self._tell()
        self._giving = asyncio.create_task(give_back_when_idle(lambda: self.models.num_open), name="idle memory")

    def begin_drain(self) -> None:
        self.loader.begin_drain(self.settings.drain_seconds)

    def stop_at_once(self) -> None:
        """Fail the requests that still run; the workers have no time to leave by themselves."""
        self._leave_seconds = 0.0
        for model in self.models:
            model.client.cut_off()

    async def close(self) -> None:
        await self.close_workers(self.settings.drain_seconds, self._leave_seconds)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
        self.pool.close()
        if self._giving is not None:
            self._giving.cancel()

    async def close_workers(self, seconds: float, leave_seconds: float) -> None:
        """Leave no worker process. See `EngineClient.close`. Safe to call twice."""
        await self.loader.close(seconds, leave_seconds)
        await self.standby.close()

    def reload(self) -> Reloaded:
        """Read settings and API keys again, and take up those that need no restart. Raises ConfigError with a line for
        each fault; the settings of before then hold."""
        found = None if self.sources is None else self.sources.read()
        self.keys.reload()
        server = self.settings if found is None else found.server.settings
        models = {} if found is None else {name: each.settings for name, each in found.models}
        wanted = {model: models.get(model.name, model.settings) for model in self.models}
        told = reloaded([(self.settings, server), *((model.settings, each) for model, each in wanted.items())])
        self.settings = taken_up(self.settings, server)
        for model, settings in wanted.items():
            model.take_up(settings)
        if key_of("log_level") in told.changed:
            logging.getLogger().setLevel(server.log_level.upper())
        LOG.info("The settings were read again: %s.", told)
        return told

    @property
    def status(self) -> EngineStatus:
        """All models' as one, see `Catalogue`."""
        return self.models.status

    async def read(self, request: Request, model: type[M]) -> M:
        """The request's body as a `model`. Raises an ApiError that names the field at fault."""
        return await read_body(request, model, self.pool, self.settings.max_body_parts)

    async def render(self, template: ChatTemplate, conversation: Conversation) -> MarkedText:
        """The prompt's text. Few clients' templates are rendered at a time. Raises ApiError."""
        async with self.clients_templates if template.is_clients else nullcontext():
            return await template.render(conversation)

    async def work_on(self, request: Request, work: Callable[[], T], more_bytes: int = 0) -> T:
        """Run `work` on a request whose body was read, and return its result. Where the body, with `more_bytes`
        that were stored, is large it runs in a thread. Raises ApiError where the client leaves first."""
        return await self.pool.run(request, work, more_bytes)

    def hold_model(self, request: Request, name: str | None, keep_alive: float | None = None) -> Model:
        """The model under the name that a body gives, loaded or not; once it is loaded it stays so until the request
        has its answer. keep_alive: seconds that it then stays, its own if None. Raises ApiError 404."""
        model = self.models.find(name)
        LOGGED_MODEL.set(model.log_name)
        hold(request, self.loader.use(model, keep_alive))
        return model

    async def loaded(self, model: Model, name: str | None = None, timeout: float | None = None) -> ServedModel:
        """A model that the caller holds, once it is ready. name: by which the client calls it. timeout: in seconds, of
        the whole request. Raises ApiError 503 where it cannot be served now or the queue's time is over, 504 where the
        request's is."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(timeout):
                await self.loader.ready(model, model.settings.max_queue_seconds)
        except TimeoutError:
            message = f"The request's timeout of {timeout:g} s is over: {model.status.sentence}."
            raise ApiError(504, message, None, "timeout") from None
        served = model.served(name, loop.time() - began)
        if served is None:
            raise not_ready(model.status)
        return served

    async def require_model(self, request: Request, name: str | None, keep_alive: float | None = None) -> ServedModel:
        """`hold_model`, then `loaded`, for a request whose body was read. Raises ApiError also where the client leaves
        first."""
        model = self.hold_model(request, name, keep_alive)
        return await until_disconnect(request.receive, self.loaded(model, name))

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.status)


def service_of(connection: HTTPConnection) -> Service:
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
