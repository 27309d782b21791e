"""POST /v1/responses: a request is converted to a chat request, and may continue an earlier response."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.chat.options import chat_options
from server.endpoints.chat.rendered_chat import render_chat
from server.endpoints.once_loaded import once_loaded
from server.endpoints.openapi import error_replies, generation_replies
from server.endpoints.responses.input import chat_request
from server.endpoints.responses.serializer import ResponseSerializer
from server.engine_client.client import EngineClient
from server.generation.answer import answer
from server.generation.prepare import prepare
from server.generation.response_store import ResponseStore, StoredResponse, written_items
from server.http.auth import caller_of
from server.http.body import takes
from server.http.errors import ApiError, invalid, naming
from server.http.sender import sender_of
from server.prompts.served_model import ServedModel
from server.schemas import response_replies
from server.schemas.responses import InputItem, ResponseRequest
from server.service import service_of

router = APIRouter()

NOTHING = StoredResponse(b"", (), 0)

# The chat request's fields, and what /v1/responses calls them: errors name the latter.
NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
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
    service, tenant = service_of(request), caller_of(request).tenant
    body = await service.read(request, ResponseRequest)
    sender = sender_of(request, body.session_id)
    is_kept = body.store and service.responses.keeps
    earlier = _earlier(body, service.responses, tenant)
    size = earlier.num_bytes
    items, written = await service.work_on(request, lambda: _conversation(body, earlier, is_kept), size)

    def keep(reply: response_replies.Response) -> None:
        if is_kept:
            service.responses.keep(tenant, reply["id"], StoredResponse.of(reply, written))

    async def run(model: ServedModel, client: EngineClient) -> Response:
        with naming(NAMES):
            chat = await render_chat(request, lambda: chat_request(body, items), service, model, size)
            call = await service.work_on(
                request, lambda: prepare(chat.body, chat_options(chat, model, "resp_"), model, sender), size
            )
            serializer = ResponseSerializer(call, body, is_kept, keep)
            return await answer(call, serializer, request, client, service.pool, service.metrics.on_error)

    return await once_loaded(request, body, sender, service, run)


@router.post("/v1/responses/compact", include_in_schema=False)
async def compact() -> Response:
    """Refused by a sentence: OpenAI's own summary is sealed, and no other server can make it."""
    message = "This server does not compact conversations: let the client shorten its own, or send less of it."
    raise ApiError(404, message, None, "unsupported_endpoint")


@router.post(
    "/v1/responses/input_tokens", responses=error_replies(400, 404, 413, 415, 503), openapi_extra=takes(ResponseRequest)
)
async def count_input_tokens(request: Request) -> response_replies.InputTokens:
    """How many tokens the conversation has when it is rendered for the model."""
    service = service_of(request)
    body = await service.read(request, ResponseRequest)
    model = await service.require_model(request, body.model, body.keep_alive)
    earlier = _earlier(body, service.responses, caller_of(request).tenant)
    size = earlier.num_bytes
    items, _ = await service.work_on(request, lambda: _conversation(body, earlier, False), size)
    with naming(NAMES):
        chat = await render_chat(request, lambda: chat_request(body, items), service, model, size)
        options = await service.work_on(request, lambda: chat_options(chat, model), size)
    return {"object": "response.input_tokens", "input_tokens": len(options.prompts[0].token_ids)}


def _earlier(body: ResponseRequest, store: ResponseStore, tenant: str) -> StoredResponse:
    """The response that the body continues, an empty one where it continues none. Raises ApiError where it is not
    kept."""
    earlier = body.previous_response_id
    if earlier is None:
        return NOTHING
    stored = store.find(tenant, earlier)
    if stored is None:
        message = f"There is no response '{earlier}', or none any more: they are kept in memory, and not for ever."
        raise invalid(message, "previous_response_id", "previous_response_not_found")
    return stored


def _conversation(
    body: ResponseRequest, earlier: StoredResponse, is_kept: bool
) -> tuple[list[InputItem], tuple[bytes, ...]]:
    """The items of the response that the body continues, then its own; and both as they are stored, if they are."""
    before = earlier.read_items()
    written = earlier.items + written_items(body.input, before) if is_kept else ()
    return [*before, *body.input], written
