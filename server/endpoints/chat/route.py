"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.chat.options import chat_options
from server.endpoints.chat.rendered_chat import render_chat
from server.endpoints.chat.serializer import ChatSerializer
from server.endpoints.once_loaded import once_loaded
from server.endpoints.openapi import generation_replies
from server.engine_client.client import EngineClient
from server.generation.answer import answer
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.sender import sender_of
from server.prompts.served_model import ServedModel
from server.schemas.chat import ChatCompletion, ChatRequest
from server.service import service_of

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    response_model=ChatCompletion,
    responses=generation_replies("ChatCompletionChunk"),
    openapi_extra=takes(ChatRequest),
)
async def create_chat_completion(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    body = await service.read(request, ChatRequest)
    sender = sender_of(request, body.session_id)

    async def run(model: ServedModel, client: EngineClient) -> Response:
        chat = await render_chat(request, lambda: body, service, model)
        call = await service.work_on(request, lambda: prepare(body, chat_options(chat, model), model, sender))
        serializer = ChatSerializer(call, body)
        return await answer(call, serializer, request, client, service.pool, service.metrics.on_error)

    return await once_loaded(request, body, sender, service, run)
