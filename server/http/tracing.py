"""A span for every POST, for OpenTelemetry: begun where the sender's trace says, ended with the reply's last byte.

Pure ASGI. Owns where spans go; what is inside a generation call is `generation.spans`'s. Nothing that a client wrote is
in a span but its request id. The packages are those of gander[otel], imported where tracing is on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from decoding import __version__
from decoding.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int | float]
EXPORT_SECONDS = 2.0  # for a collector to take spans, also while the server stops


def exporting_provider(endpoint: str) -> TracerProvider:
    """Sends spans to a collector in batches, in a thread. Raises ConfigError where the packages are missing."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"--otlp-endpoint needs what gander[otel] installs: {error}") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "gander", "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)))
    return provider


@dataclass(frozen=True, slots=True)
class RequestSpan:
    span: Span
    tracer: Tracer
    context: Context  # of its children

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def add(self, name: str, start: int, end: int, attributes: Attributes) -> None:
        """A child that is over. start, end: nanoseconds since 1970."""
        self.tracer.start_span(name, self.context, attributes=attributes, start_time=start).end(end)


class TracingMiddleware:
    """Puts the span where `span_of` finds it."""

    def __init__(self, app: ASGIApp, provider: TracerProvider) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = provider.get_tracer("gander", __version__)
        self._extract = TraceContextTextMapPropagator().extract
        self._context_of = set_span_in_context
        self._kind = SpanKind.SERVER
        self._failed = Status(StatusCode.ERROR)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parent = self._extract(Headers(scope=scope))
        span = self._tracer.start_span("POST", parent, self._kind, {"http.request.method": "POST"})
        if span.is_recording():
            scope["state"]["span"] = RequestSpan(span, self._tracer, self._context_of(span))
        status = 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = getattr(scope.get("route"), "path", "unmatched")
            span.update_name(f"POST {route}")
            request_id = scope["state"]["request_id"]
            told = {"http.route": route, "http.response.status_code": status, "gander.request_id": request_id}
            span.set_attributes(told)
            if status >= 500:
                span.set_status(self._failed)
            span.end()


def span_of(connection: HTTPConnection) -> RequestSpan | None:
    """None where the request is not traced."""
    span = getattr(connection.state, "span", None)
    assert span is None or isinstance(span, RequestSpan)
    return span
