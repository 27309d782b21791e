"""GET /metrics: everything in the server's registry, in the format the scraper asks for."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client.exposition import choose_encoder

from server.openapi import error_replies
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
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service_of(request).metrics.registry), headers={"Content-Type": content_type})
