"""POST /v1/responses: a chat call under another form. Nothing is stored."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.chat.options import chat_options
from server.endpoints.openapi import generation_replies
from server.endpoints.responses.input import chat_request
from server.endpoints.responses.serializer import ResponseSerializer
from server.generation.answer import answer
from server.generation.call import GenerationCall
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.errors import naming
from server.http.session import session_of
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


@router.post(
    "/v1/responses",
    response_model=response_replies.Response,
    responses=generation_replies("ResponseEvent"),
    openapi_extra=takes(ResponseRequest),
)
async def create_response(request: Request) -> Response:
    """Answer a conversation, item by item."""
    service = service_of(request)
    body = await service.read(request, ResponseRequest)
    model, session = service.require_model(body.model), session_of(request, body.session_id)

    def prepared() -> GenerationCall:
        chat = chat_request(body)
        return prepare(chat, chat_options(chat, model, "resp"), model, session)

    with naming(NAMES):
        call = await service.work_on(request, prepared)
        return await answer(call, ResponseSerializer(call, body), request, service.client, service.metrics.on_error)
