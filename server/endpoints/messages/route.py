"""POST /v1/messages, Anthropic's API: a request is converted to a chat request, and runs as one."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.chat.options import chat_options
from server.endpoints.chat.rendered_chat import RenderedChat, render_chat
from server.endpoints.messages.context import require_nothing_cleared, require_whole_conversation
from server.endpoints.messages.input import chat_request, names_of
from server.endpoints.messages.serializer import MessageSerializer
from server.endpoints.once_loaded import once_loaded
from server.endpoints.openapi import error_replies, generation_replies
from server.engine_client.client import EngineClient
from server.generation.answer import answer
from server.generation.options import GenerationOptions
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.errors import naming, require_at_most
from server.http.sender import sender_of
from server.prompts.served_model import ServedModel
from server.schemas.anthropic import CountRequest, MessageRequest
from server.schemas.anthropic_replies import MessageErrorReply, MessageReply, TokenCount
from server.service import service_of

router = APIRouter(prefix="/v1/messages")


@router.post(
    "",
    response_model=MessageReply,
    responses=generation_replies("MessageEvent", MessageErrorReply),
    openapi_extra=takes(MessageRequest),
)
async def create_message(request: Request) -> Response:
    """Answer a conversation, block by block."""
    service = service_of(request)
    body = await service.read(request, MessageRequest)
    require_whole_conversation(body)
    sender = sender_of(request, body.session_id)

    async def run(model: ServedModel, client: EngineClient) -> Response:
        with naming(names_of(body)):
            chat = await render_chat(request, lambda: chat_request(body), service, model)
            call = await service.work_on(
                request, lambda: prepare(chat.body, _options(body, chat, model), model, sender)
            )
            serializer = MessageSerializer(call, body, model.settings.prefix_cache)
            return await answer(call, serializer, request, client, service.pool, service.metrics.on_error)

    return await once_loaded(request, body, sender, service, run)


@router.post(
    "/count_tokens",
    responses=error_replies(400, 401, 404, 413, 415, 503, model=MessageErrorReply),
    openapi_extra=takes(CountRequest),
)
async def count_tokens(request: Request) -> TokenCount:
    """How many tokens the conversation has when it is rendered for the model."""
    service = service_of(request)
    body = await service.read(request, CountRequest)
    model = await service.require_model(request, body.model, body.keep_alive)
    with naming(names_of(body)):
        chat = await render_chat(request, lambda: chat_request(body), service, model)
        options = await service.work_on(request, lambda: chat_options(chat, model))
        num_tokens = len(options.prompts[0].token_ids)
        require_nothing_cleared(body, num_tokens)
    return {"input_tokens": num_tokens}


def _options(body: MessageRequest, chat: RenderedChat, model: ServedModel) -> GenerationOptions:
    """The chat's options. Raises ApiError for a reply longer than this server's limit."""
    if model.settings.max_reply_tokens is not None:
        require_at_most(body.max_tokens, model.settings.max_reply_tokens, "max_tokens")
    options = chat_options(chat, model, "msg_")
    require_nothing_cleared(body, len(options.prompts[0].token_ids))
    return replace(options, max_tokens=body.max_tokens)
