"""POST /v1/responses: a chat call under another form. Nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.responses.input import chat_request
from server.endpoints.responses.serializer import ResponseShape
from server.generation.calls import answer
from server.generation.chat_call import prepare_chat
from server.http.errors import naming
from server.http.openapi import generation_replies
from server.schemas import response_replies
from server.schemas.responses import ResponseRequest
from server.service import service_of

router = APIRouter()

# What a chat request's fields are called here.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}


@router.post("/v1/responses", response_model=response_replies.Response, responses=generation_replies("ResponseEvent"))
async def create_response(body: ResponseRequest, request: Request) -> Response:
    """Answer a conversation, item by item."""
    service = service_of(request)
    with naming(NAMES):
        chat = await prepare_chat(chat_request(body), request, service, "resp")
        with naming(chat.names):
            return await answer(chat.call, chat.plans, ResponseShape(chat.call, body), request, service)
