"""GET /metrics: everything in the server's registry, in the format the scraper asks for."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client.exposition import choose_encoder

from server.service import service_of

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus metrics: names beginning with gander_, and vLLM's own names for the same numbers."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(service_of(request).metrics.registry), headers={"Content-Type": content_type})
