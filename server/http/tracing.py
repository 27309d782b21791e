"""An OpenTelemetry span for every POST: a child of the span in the sender's traceparent header, which ends with the
reply's last byte.

Plain ASGI middleware. `generation.spans` adds what happens inside a generation call. A span holds nothing that a client
wrote but the request id. The packages, those of the extra `otel`, are imported only where tracing is on.
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
EXPORT_SECONDS = 2.0  # how long an export to the collector may take, also while the server stops


def exporting_provider(endpoint: str) -> TracerProvider:
    """A provider whose thread sends spans to a collector, in batches. Raises ConfigError without the extra `otel`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"--otlp-endpoint needs what the extra otel installs: {error}") from None
    provider = TracerProvider(resource=Resource.create({"service.name": "gander", "service.version": __version__}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS)))
    return provider


@dataclass(frozen=True, slots=True)
class RequestSpan:
    span: Span
    tracer: Tracer
    context: Context  # the context in which its children start

    def set(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def add(self, name: str, start: int, end: int, attributes: Attributes) -> None:
        """Add a child span that is already over. start, end: nanoseconds since 1970."""
        self.tracer.start_span(name, self.context, attributes=attributes, start_time=start).end(end)


class TracingMiddleware:
    """Opens a span around each POST; `span_of` returns it."""

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
    """The request's span; None where it is not traced."""
    span = getattr(connection.state, "span", None)
    assert span is None or isinstance(span, RequestSpan)
    return span
