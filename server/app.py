"""The FastAPI application: it wires middleware, routes and error handlers, and starts and stops the service.

The port is open while the model loads: routes that need the engine answer 503 until then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from decoding import __version__
from server.config import ServerSettings
from server.endpoints import admin, admin_models, health, metrics, models, page, sessions, tokens
from server.endpoints.chat import route as chat
from server.endpoints.completions import route as completions
from server.endpoints.embeddings import route as embeddings
from server.endpoints.messages import route as messages
from server.endpoints.ollama import embed as ollama_embed
from server.endpoints.ollama import models as ollama_models
from server.endpoints.ollama import pull as ollama_pull
from server.endpoints.ollama import route as ollama
from server.endpoints.openapi import document
from server.endpoints.responses import route as responses
from server.endpoints.responses import stored
from server.engine_client.processes.restart_policy import RestartPolicy
from server.engine_client.processes.standby import Standby
from server.engine_client.processes.worker_process import WORKER_COMMAND
from server.generation.response_store import ResponseStore
from server.http.auth import AuthMiddleware
from server.http.errors import ApiError, from_validation, is_ollama
from server.http.heads.hosts import HostCheck, is_every_address
from server.http.holds import HoldsMiddleware
from server.http.keys import KeyRing
from server.http.middleware import BodyLimit, RequestFrame
from server.http.notices import NOTICE, NoticesMiddleware
from server.http.rate_limits import RATE_LIMIT_HEADERS, RateLimitMiddleware
from server.http.tracing import TracingMiddleware, exporting_provider
from server.metrics.server_metrics import ServerMetrics
from server.models.catalogue import Catalogue
from server.models.loader import Loader
from server.models.making import make_models
from server.service import Service

STORES_OF_A_SESSION = 2  # stores that --session-bytes bounds, each by itself
FILE_THREADS = 4  # that read the page's files; anyio would start forty
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}
GENERATING = "/v1/chat/completions, /v1/completions, /v1/responses and /v1/messages"
# The parts of OpenAI's API below /v1/ that this server does not have: they get a 404 that says so.
NOT_SERVED = frozenset({"audio", "batches", "files", "fine_tuning", "images", "moderations", "rerank", "score"})

BELOW_V1 = frozenset(
    {"chat", "completions", "embeddings", "messages", "models", "responses"}
)  # first parts of paths after /v1/


def create_service(
    settings: ServerSettings,
    command: Sequence[str] = WORKER_COMMAND,
    policy: RestartPolicy | None = None,
    models: Sequence[ServerSettings] = (),
    standby: Standby | None = None,
) -> Service:
    """settings: the server's own, and the one model's where `models` names none; the first of several is the default.
    standby: which workers are made of, in place of one that starts `command`. Raises ConfigError."""
    policy = policy or RestartPolicy(worker_timeout=settings.worker_timeout, has_standby=settings.standby)
    standby = standby or Standby(command, is_wanted=policy.has_standby)
    catalogue = Catalogue(make_models(models or (settings,), settings.max_loaded, standby, policy))
    keys = KeyRing(settings.api_keys, settings.admin_keys, settings.api_key_file)
    return Service(
        settings,
        catalogue,
        Loader(catalogue.models, settings.max_loaded),
        standby,
        ServerMetrics(model.metrics for model in catalogue),
        keys,
        ResponseStore(settings.response_store_bytes),
        None if settings.otlp_endpoint is None else exporting_provider(settings.otlp_endpoint),
    )


def create_app(service: Service) -> FastAPI:
    """The application starts `service` when its lifespan begins, and closes it when the lifespan ends."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001
        to_thread.current_default_thread_limiter().total_tokens = FILE_THREADS
        service.start()
        try:
            yield
        finally:
            await service.close()

    # No /docs, whose scripts come from elsewhere, and no redirects, which would lead to whatever Host a client sends.
    app = FastAPI(
        title="Gander", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.service = service
    for module in (
        chat,
        completions,
        responses,
        stored,
        messages,
        embeddings,
        models,
        admin_models,
        sessions,
        tokens,
        health,
        admin,
        metrics,
        page,
    ):
        app.include_router(module.router)
    if service.settings.ollama_api:
        for module in (ollama, ollama_models, ollama_embed, ollama_pull):
            app.include_router(module.router)
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    _add_middleware(app, service)
    _add_error_handlers(app, service)
    return app


def max_put_bytes(settings: ServerSettings) -> int:
    """The largest body there is: a session that an admin brings."""
    return settings.max_body_bytes + STORES_OF_A_SESSION * settings.session_bytes


def _add_middleware(app: FastAPI, service: Service) -> None:
    """Each middleware wraps those added before it, so the last one added sees a request first."""
    settings, on_error = service.settings, service.metrics.on_error
    app.add_middleware(HoldsMiddleware)
    app.add_middleware(NoticesMiddleware, unknown_fields=settings.unknown_fields)
    app.add_middleware(
        BodyLimit, max_bytes=settings.max_body_bytes, max_put_bytes=max_put_bytes(settings), on_error=on_error
    )
    app.add_middleware(RateLimitMiddleware, on_error=on_error)
    app.add_middleware(AuthMiddleware, ring=service.keys, has_open_metrics=settings.open_metrics, on_error=on_error)
    if settings.cors_origins is not None:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=[origin.strip() for origin in settings.cors_origins.split(",")],
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "retry-after", NOTICE, *RATE_LIMIT_HEADERS],
        )
    if settings.allowed_hosts is not None or (service.keys.is_open and not is_every_address(settings.host)):
        app.add_middleware(HostCheck, given=settings.allowed_host_names, on_error=on_error)
    if service.tracing is not None:
        app.add_middleware(TracingMiddleware, provider=service.tracing)
    app.add_middleware(RequestFrame, on_request=service.metrics.on_request, on_error=on_error)


def _add_error_handlers(app: FastAPI, service: Service) -> None:
    def respond(error: ApiError, request: Request) -> Response:
        service.metrics.on_error(error)
        return error.response(request.scope)

    @app.exception_handler(ApiError)
    async def on_api_error(request: Request, error: ApiError) -> Response:
        return respond(error, request)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        errors = [each | {"loc": each["loc"][1:]} for each in error.errors()]  # it begins with query or path
        return respond(from_validation(errors), request)

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        first, _, part = path.strip("/").partition("/")
        if error.status_code == 404 and first == "v1" and part.partition("/")[0] in NOT_SERVED:
            message = f"This server generates text and has no /v1/{part}; it serves {GENERATING}."
            return respond(ApiError(404, message, None, "unsupported_endpoint"), request)
        if error.status_code == 404 and is_ollama(request.scope) and not service.settings.ollama_api:
            message = "This server does not serve Ollama's API: it was started with --no-ollama-api."
            return respond(ApiError(404, message, None, "unsupported_endpoint"), request)
        message = f"{error.detail}: {request.method} {path}"
        if error.status_code == 404 and first in BELOW_V1:
            message += f". The client's base URL lacks /v1: this server has /v1{path}."
        elif error.status_code == 404 and path != "/" and path.endswith("/"):
            message += ". No path of this server ends in a slash: leave it out."
        elif error.status_code == 404 and path.startswith("/v1/v1/"):
            message += f". The client's base URL has one /v1 too many: this server has {path.removeprefix('/v1')}."
        code = HTTP_CODES.get(error.status_code, "http_error")
        response = respond(ApiError(error.status_code, message, None, code), request)
        response.headers.update(error.headers or {})  # Allow, with 405
        return response
