"""What all routes share: settings, the engine's client, tokenizer, chat template, metrics; and whether they can serve.

Owns the start of the workers and the loading of the tokenizer, which both happen while the port is already open.
"""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio import Semaphore
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel
from starlette.requests import HTTPConnection, Request

from decoding.errors import ConfigError, in_one_line
from server.config import ServerSettings, SettingSources
from server.engine_client.client import LEAVE_SECONDS, EngineClient
from server.engine_client.status import EngineStatus, OnStatus
from server.generation.response_store import ResponseStore
from server.http.body import read_body
from server.http.errors import ApiError, unavailable
from server.http.idle_memory import give_back_when_idle
from server.http.keys import KeyRing
from server.http.work.work_pool import WorkPool
from server.metrics.metrics import Metrics
from server.prompts.chat_template import ChatTemplate, Conversation, load_chat_template
from server.prompts.jinja_template import TemplateRefusal
from server.prompts.model_files import ModelFiles
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.prompts.tokenizer import Tokenizer, load_tokenizer
from server.settings.file import key_of
from server.settings.live import LIVE, QUEUE_LIMITS, Reloaded, reloaded

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

LOG = logging.getLogger("gander.service")
CLIENTS_TEMPLATES = 2  # that requests bring, rendered at a time
RETRY_AFTER = 2  # seconds that a client is told to wait while the engine starts

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


@dataclass(slots=True)
class Service:
    settings: ServerSettings
    client: EngineClient
    metrics: Metrics
    keys: KeyRing
    responses: ResponseStore
    tracing: TracerProvider | None = None
    sources: SettingSources | None = None
    tokenizer: Tokenizer | None = None
    chat_template: ChatTemplate | None = None
    loading_error: str | None = None
    created: int = 0
    pool: WorkPool = field(default_factory=WorkPool)
    clients_templates: Semaphore = field(default_factory=lambda: Semaphore(CLIENTS_TEMPLATES))
    _leave_seconds: float = LEAVE_SECONDS
    _loading: asyncio.Task[None] | None = None
    _giving: asyncio.Task[None] | None = None
    _listeners: list[OnStatus] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.client.subscribe(lambda _: self._tell())
        self.metrics.watch(self.client, lambda: self.status)

    def subscribe(self, listener: OnStatus) -> None:
        """Call `listener` with every change of status from now on."""
        self._listeners.append(listener)

    def start(self) -> None:
        self.created = int(time.time())
        self.client.start()
        self._loading = asyncio.create_task(self._load_prompts(), name="tokenizer")
        self._giving = asyncio.create_task(give_back_when_idle(lambda: self.client.num_open), name="idle memory")

    def begin_drain(self) -> None:
        self.client.begin_drain(self.settings.drain_seconds)

    def stop_at_once(self) -> None:
        """Fail the requests that still run; the workers have no time to leave by themselves."""
        self._leave_seconds = 0.0
        self.client.cut_off()

    async def close(self) -> None:
        await self.client.close(self.settings.drain_seconds, self._leave_seconds)
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.shutdown)
        self.pool.close()
        if self._giving is not None:
            self._giving.cancel()
        if self._loading is not None:
            await self._loading
        if self.chat_template is not None:
            self.chat_template.close()

    def reload(self) -> Reloaded:
        """Read settings and API keys again, and take up those that need no restart. Raises ConfigError with a line for
        each fault; the settings of before then hold."""
        wanted = self.settings
        if self.sources is not None:
            models = self.sources.read().models
            wanted = dict(models).get(self.settings.model_name, models[0][1]).settings
        self.keys.reload()
        found = reloaded(self.settings, wanted)
        self.settings = self.settings.model_copy(update={name: getattr(wanted, name) for name in LIVE})
        limits = {name: getattr(wanted, name) for name in QUEUE_LIMITS}
        self.client.take_up(replace(self.client.limits, **limits), wanted.keep_alive_seconds)
        if key_of("log_level") in found.changed:
            logging.getLogger().setLevel(wanted.log_level.upper())
        LOG.info("The settings were read again: %s.", found)
        return found

    @property
    def status(self) -> EngineStatus:
        """The engine's status; "failed" or "loading" where tokenizer or chat template failed or are not loaded yet."""
        status = self.client.status
        if self.loading_error is not None:
            return replace(status, state="failed", sentence=self.loading_error)
        if status.state == "ready" and self.tokenizer is None:
            return replace(status, state="loading", sentence="loading the tokenizer")
        return status

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

    def require_ready(self) -> ServedModel:
        """The served model. Raises ApiError 503 unless requests can be served now."""
        status, engine = self.status, self.client.ready
        if status.state != "ready" or self.tokenizer is None or engine is None:
            message = f"The engine is not ready: {status.sentence}."
            raise unavailable(message, f"engine_{status.state}", RETRY_AFTER)
        return ServedModel(self.settings.model_name, self.tokenizer, self.chat_template, engine, self.settings)

    def require_name(self, name: str | None) -> None:
        """Raises ApiError 404 for a name that is none of the served model's; None is always right."""
        if name is not None and not self.settings.serves(name):
            served = ", ".join(f"'{each}'" for each in self.settings.model_names)
            message = f"The model '{name}' does not exist here; this server has {served}."
            raise ApiError(404, message, "model", "model_not_found")

    def require_model(self, name: str | None) -> ServedModel:
        """The model under the name that a body gives. Raises ApiError 503 (not ready) or 404 (another model's name)."""
        model = self.require_ready()
        self.require_name(name)
        return model if name is None else replace(model, name=name)

    async def _load_prompts(self) -> None:
        try:
            self.chat_template, self.tokenizer = await asyncio.to_thread(load_prompts, self.settings)
        except ConfigError as error:
            self.loading_error = str(error)
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener(self.status)


def service_of(connection: HTTPConnection) -> Service:
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service


def load_prompts(settings: ServerSettings) -> tuple[ChatTemplate | None, Tokenizer]:
    """The model's chat template and its tokenizer. Blocks. Raises ConfigError with a sentence that names the model."""
    files = ModelFiles(settings.model, settings.revision, settings.gguf_file)
    with _refusing("chat template", settings):
        template = load_chat_template(files, settings)
    try:
        with _refusing("tokenizer", settings):
            return template, load_tokenizer(files, settings.trust_remote_code)
    except ConfigError:
        if template is not None:
            template.close()
        raise


@contextmanager
def _refusing(what: str, settings: ServerSettings) -> Iterator[None]:
    """Make a sentence of whatever is raised: a stranger's files make libraries raise anything."""
    try:
        yield
    except Exception as error:
        LOG.debug("The %s of %s cannot be loaded.", what, settings.model, exc_info=True)
        reason = in_one_line(error)
        cause = reason if isinstance(error, TemplateRefusal) else f"cannot be loaded: {reason}"
        raise ConfigError(f"the {what} of {settings.model} {cause}") from error
