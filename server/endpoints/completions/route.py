"""POST /v1/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.completions.options import completion_options
from server.endpoints.completions.serializer import CompletionSerializer
from server.endpoints.once_loaded import once_loaded
from server.endpoints.openapi import generation_replies
from server.engine_client.client import EngineClient
from server.generation.answer import answer
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.sender import sender_of
from server.prompts.served_model import ServedModel
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
    sender = sender_of(request, body.session_id)

    async def run(model: ServedModel, client: EngineClient) -> Response:
        call = await service.work_on(request, lambda: prepare(body, completion_options(body, model), model, sender))
        serializer = CompletionSerializer(call, body)
        return await answer(call, serializer, request, client, service.pool, service.metrics.on_error)

    return await once_loaded(request, body, sender, service, run)
