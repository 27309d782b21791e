"""The FastAPI application: middleware, routes, error handlers, and the life of the service behind them.

Owns the wiring only. The port is open while the model loads: routes that need the engine answer 503 until then.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from decoding import __version__
from server.client import EngineClient, RestartPolicy
from server.config import ServerSettings
from server.errors import ApiError, from_validation
from server.metrics import Metrics
from server.middleware import BodyLimit, RequestFrame
from server.routes import completions, health, metrics, models
from server.service import Service
from server.worker_process import WORKER_COMMAND

HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


def create_service(
    settings: ServerSettings,
    command: Sequence[str] = WORKER_COMMAND,
    policy: RestartPolicy | None = None,
) -> Service:
    collected = Metrics(settings.model_name)
    client = EngineClient(settings.engine_config(), collected, command, policy)
    service = Service(settings, client, collected)
    collected.read_status = lambda: service.status
    return service


def create_app(service: Service) -> FastAPI:
    """The application serves as soon as its lifespan has started, and stops `service` with it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001
        service.start()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(title="Gander", version=__version__, lifespan=lifespan, docs_url="/docs", redoc_url=None)
    app.state.service = service
    for module in (completions, models, health, metrics):
        app.include_router(module.router)
    app.add_middleware(BodyLimit, max_bytes=service.settings.max_body_bytes, metrics=service.metrics)
    app.add_middleware(RequestFrame, metrics=service.metrics)
    _add_error_handlers(app, service.metrics)
    return app


def _add_error_handlers(app: FastAPI, collected: Metrics) -> None:
    def respond(error: ApiError) -> Response:
        collected.on_error(error)
        return error.response()

    @app.exception_handler(ApiError)
    async def on_api_error(_: Request, error: ApiError) -> Response:
        return respond(error)

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> Response:
        return respond(from_validation(error.errors(), request.headers.get("content-type", "")))

    @app.exception_handler(HTTPException)
    async def on_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:
            return respond(ApiError(400, "The body is not valid JSON.", None, "invalid_json"))
        message = f"{error.detail}: {request.method} {request.url.path}"
        code = HTTP_CODES.get(error.status_code, "http_error")
        return respond(ApiError(error.status_code, message, None, code))
