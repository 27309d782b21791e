"""POST /v1/chat/completions."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.chat.serializer import ChatShape
from server.generation.calls import answer
from server.generation.chat_call import prepare_chat
from server.http.errors import naming
from server.http.openapi import generation_replies
from server.schemas.chat import ChatCompletion, ChatRequest
from server.service import service_of

router = APIRouter()


@router.post("/v1/chat/completions", response_model=ChatCompletion, responses=generation_replies("ChatCompletionChunk"))
async def create_chat_completion(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    chat = await prepare_chat(body, request, service, "chatcmpl")
    with naming(chat.names):
        return await answer(chat.call, chat.plans, ChatShape(chat.call, body), request, service)
