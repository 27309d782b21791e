"""POST /api/chat and /api/generate, Ollama's API: a request is converted to one of chat or completions, and runs so."""

from __future__ import annotations

import time
from dataclasses import replace

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from server.endpoints.chat.options import chat_options
from server.endpoints.chat.rendered_chat import render_chat
from server.endpoints.completions.options import completion_options
from server.endpoints.ollama.input import (
    NAMES,
    PROMPT_NAMES,
    chat_request,
    completion_request,
    prompt_as_chat,
)
from server.endpoints.ollama.names import find_model, require_model
from server.endpoints.ollama.serializer import OllamaSerializer, timestamp
from server.endpoints.openapi import LINES_STREAMED, generation_replies
from server.generation.answer import answer
from server.generation.call import GenerationCall
from server.generation.options import GenerationOptions
from server.generation.prepare import prepare
from server.http.body import takes
from server.http.errors import invalid, naming
from server.http.notices import tell
from server.http.sender import sender_of
from server.prompts.served_model import ServedModel
from server.schemas.completions import CompletionRequest
from server.schemas.ollama.replies import OllamaChatReply, OllamaError, OllamaGenerateReply
from server.schemas.ollama.requests import GeneratingRequest, OllamaChatRequest, OllamaGenerateRequest
from server.service import service_of

router = APIRouter(prefix="/api")


@router.post(
    "/chat",
    response_model=OllamaChatReply,
    responses=generation_replies("OllamaChatReply", OllamaError, LINES_STREAMED),
    openapi_extra=takes(OllamaChatRequest),
)
async def chat(request: Request) -> Response:
    """Answer a conversation, as Ollama does."""
    began, service = time.monotonic_ns(), service_of(request)
    body = await service.read(request, OllamaChatRequest)
    if not body.messages:
        return await _alone(request, body, began, {"message": {"role": "assistant", "content": ""}})
    model, held = await require_model(request, service, body.model, body.keep_alive)
    _check(body, model)
    sender = sender_of(request, None)
    with naming(NAMES):
        rendered = await render_chat(request, lambda: chat_request(body), service, model)
        call = await service.work_on(
            request, lambda: prepare(rendered.body, chat_options(rendered, model), model, sender)
        )
        serializer = OllamaSerializer(call, body.model, began, is_chat=True)
        return await answer(call, serializer, request, held.client, service.pool, service.metrics.on_error)


@router.post(
    "/generate",
    response_model=OllamaGenerateReply,
    responses=generation_replies("OllamaGenerateReply", OllamaError, LINES_STREAMED),
    openapi_extra=takes(OllamaGenerateRequest),
)
async def generate(request: Request) -> Response:
    """Answer or continue a prompt, as Ollama does."""
    began, service = time.monotonic_ns(), service_of(request)
    body = await service.read(request, OllamaGenerateRequest)
    if not (body.prompt or body.suffix or body.images):
        return await _alone(request, body, began, {"response": ""})
    model, held = await require_model(request, service, body.model, body.keep_alive)
    _check(body, model)
    with naming(PROMPT_NAMES):
        call = await _generation(body, request, model)
        serializer = OllamaSerializer(call, body.model, began, is_chat=False)
        return await answer(call, serializer, request, held.client, service.pool, service.metrics.on_error)


async def _generation(body: OllamaGenerateRequest, request: Request, model: ServedModel) -> GenerationCall:
    """The call of a prompt: through the chat template, where there is one and the request does not go without."""
    service, sender = service_of(request), sender_of(request, None)
    is_shown = model.chat_template is not None or bool(body.system or body.images)
    if is_shown and not (body.raw or body.suffix):
        chat = await render_chat(request, lambda: prompt_as_chat(body), service, model)
        return await service.work_on(request, lambda: prepare(chat.body, chat_options(chat, model), model, sender))
    completion = completion_request(body)
    return await service.work_on(
        request, lambda: prepare(completion, _completion_options(completion, model), model, sender)
    )


def _completion_options(body: CompletionRequest, model: ServedModel) -> GenerationOptions:
    """A completion's, whose reply is as long as a chat's where nobody says how long."""
    most = model.settings.default_max_tokens or model.settings.max_reply_tokens
    return replace(completion_options(body, model), default_max_tokens=most)


def _check(body: GeneratingRequest, model: ServedModel) -> None:
    """Raises ApiError where a model that does not reason is to; tells what changes nothing."""
    if body.think:
        template = model.chat_template
        if template is None or not (template.reply_format.thoughts or template.reply_format.template):
            raise invalid(f"think: the model {body.model} does not reason; leave it out.", "think")
    most, asked = model.engine.max_model_len, body.options.num_ctx
    if asked is not None and asked > most:
        tell(f"The context has {most} tokens, not {asked}: --max-model-len sets it at the server's start.")
    if body.options.repeat_penalty != 1 and body.options.repeat_last_n > 0:
        tell("repeat_penalty counts all tokens of prompt and reply, not only the last repeat_last_n.")


async def _alone(request: Request, body: GeneratingRequest, began: int, said: dict[str, object]) -> Response:
    """The answer to a request that asks for nothing but the model: that it be loaded, or with a keep_alive of 0
    unloaded. As one line it is a stream, too."""
    service = service_of(request)
    if body.keep_alive == 0:
        service.loader.unload(find_model(service, body.model))
    else:
        model, _ = await require_model(request, service, body.model, body.keep_alive)
        _check(body, model)
    reason = "unload" if body.keep_alive == 0 else "load"
    reply = {"model": body.model, "created_at": timestamp(), **said, "done": True, "done_reason": reason}
    reply["total_duration"] = time.monotonic_ns() - began
    return JSONResponse(reply)
