"""POST /v1/responses: a chat call under another form. Nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.calls import answer
from server.chat_call import prepare_chat
from server.openapi import generation_replies
from server.response_input import chat_request
from server.response_shape import ResponseShape
from server.schemas import response_replies
from server.schemas.responses import ResponseRequest
from server.service import service_of

router = APIRouter()


@router.post("/v1/responses", response_model=response_replies.Response, responses=generation_replies("ResponseEvent"))
async def create_response(body: ResponseRequest, request: Request) -> Response:
    """Answer a conversation, item by item."""
    service = service_of(request)
    chat = await prepare_chat(chat_request(body), request, service, "resp")
    return await answer(chat.call, chat.plans, ResponseShape(chat.call, body), request, service)
