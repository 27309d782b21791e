"""GET /metrics: all of the server's metrics, in the format that the scraper asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8, generate_latest
from prometheus_client.registry import Collector

from server.endpoints.openapi import error_replies
from server.service import service_of

router = APIRouter()

FORMATS = ("text/plain", "application/openmetrics-text")
REPLIES: dict[int | str, dict[str, Any]] = {
    200: {"content": {name: {"schema": {"type": "string"}} for name in FORMATS}},
    **error_replies(403),
}


@router.get("/metrics", response_class=PlainTextResponse, responses=REPLIES)
async def metrics(request: Request) -> Response:
    """Prometheus metrics: names beginning with gander_, and vLLM's own names for the same numbers."""
    encode, content_type = _encoding(request.headers.get("accept", ""))
    return Response(encode(service_of(request).metrics.registry), headers={"Content-Type": content_type})


def _encoding(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Encoder and content type. No name is escaped, because all names are legal in every format. The library would
    write vllm_ for vllm: to scrapers that do not say how they want names escaped, which most do not."""
    encode, content_type = choose_encoder(accept)
    if not content_type.startswith(FORMATS[1]):
        return encode, content_type
    return partial(generate_latest, escaping=ALLOWUTF8), f"{FORMATS[1]}; version=1.0.0; charset=utf-8"
