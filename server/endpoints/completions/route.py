"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.completions.options import completion_options
from server.endpoints.completions.serializer import CompletionSerializer
from server.endpoints.openapi import generation_replies
from server.generation.answer import answer
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.sender import sender_of
from server.schemas.completions import Completion, CompletionRequest
from server.service import service_of

router = APIRouter()


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses=generation_replies("Completion"),
    openapi_extra=takes(CompletionRequest),
)
async def create_completion(request: Request) -> Response:
    """Continue a prompt, or several."""
    service = service_of(request)
    body = await service.read(request, CompletionRequest)
    model, sender = service.require_model(body.model), sender_of(request, body.session_id)
    call = await service.work_on(request, lambda: prepare(body, completion_options(body, model), model, sender))
    return await answer(
        call, CompletionSerializer(call, body), request, service.client, service.pool, service.metrics.on_error
    )
