"""POST /tokenize and /detokenize: text and messages to token ids as this server encodes them, and back. GET
/tokenizer_info: what clients must know to do with these without the tokenizer's files."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.endpoints.openapi import error_replies
from server.endpoints.rendered_prompt import render_prompt
from server.http.body import takes
from server.http.errors import require_at_most
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.conversation import ChatInput, conversation_of, require_template
from server.prompts.encoding import PromptReading, encode_rendered, encode_text, require_in_vocabulary
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.catalog import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest, TokenizerInfo
from server.schemas.tools import HostedTool
from server.service import service_of

router = APIRouter()


@router.post(
    "/tokenize",
    response_model=TokenizeReply,
    responses=error_replies(400, 404, 413, 415, 503),
    openapi_extra=takes(TokenizeRequest),
)
async def tokenize(request: Request) -> Response:
    """The token ids of a prompt, or of messages as a chat completion would render them."""
    service = service_of(request)
    body = await service.read(request, TokenizeRequest)
    model = await service.require_model(request, body.model)
    messages: MarkedText | None = None
    if body.messages is not None:
        template, conversation = await service.work_on(request, lambda: _conversation(body, model))
        messages, _ = await render_prompt(request, service, model, template, conversation)
    reply = await service.work_on(request, lambda: _tokenized(body, messages, model))
    return Response(reply, media_type="application/json")


def _tokenized(body: TokenizeRequest, messages: MarkedText | None, model: ServedModel) -> bytes:
    """A `TokenizeReply` as JSON. messages: as rendered, if there are any.

    Its lists are encoded one by one, because encoding holds the interpreter's lock."""
    if messages is None:
        reading = PromptReading(body.add_special_tokens is not False, body.parse_special)
        token_ids = encode_text(model, body.prompt or "", "prompt", reading)
    else:
        token_ids = encode_rendered(model, messages, PromptReading(bool(body.add_special_tokens)))
    names = None
    if body.return_token_strs:
        name_of = {token_id: model.tokenizer.name_of(token_id) or "" for token_id in set(token_ids)}
        names = [name_of[token_id] for token_id in token_ids]
    parts = {"tokens": token_ids, "token_strs": names}
    written = {name: msgspec.Raw(msgspec.json.encode(part)) for name, part in parts.items()}
    return msgspec.json.encode({"count": len(token_ids), "max_model_len": model.engine.max_model_len, **written})


def _conversation(body: TokenizeRequest, model: ServedModel) -> tuple[ChatTemplate, Conversation]:
    template = require_template(model.chat_template, body.chat_template, model.settings)
    tools = [tool for tool in body.tools if not isinstance(tool, HostedTool)]
    sees = model.tokenizer.images is not None
    given = ChatInput(body.messages or (), tools, body.chat_template_kwargs, sees)
    conversation = replace(
        conversation_of(given, template, model.tokenizer.special_tokens),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return template, conversation


@router.post("/detokenize", responses=error_replies(400, 404, 413, 415, 503), openapi_extra=takes(DetokenizeRequest))
async def detokenize(request: Request) -> DetokenizeReply:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    body = await service.read(request, DetokenizeRequest)
    model = await service.require_model(request, body.model)
    require_at_most(len(body.tokens), model.engine.max_model_len, "tokens")
    return await service.work_on(request, lambda: _detokenized(body, model))


def _detokenized(body: DetokenizeRequest, model: ServedModel) -> DetokenizeReply:
    require_in_vocabulary(body.tokens, model.engine.vocab_size, "tokens")
    return DetokenizeReply(prompt=model.tokenizer.decode(body.tokens, skip_special_tokens=False))


@router.get("/tokenizer_info", responses=error_replies(404, 503))
async def tokenizer_info(request: Request, model: str | None = None) -> TokenizerInfo:
    """The tokenizer's class, its special tokens and the chat template, as vLLM names them."""
    served = await service_of(request).require_model(request, model)
    named = served.tokenizer.named
    return {
        "tokenizer_class": served.tokenizer.class_name,
        "bos_token": named.get("bos_token"),
        "eos_token": named.get("eos_token"),
        "pad_token": named.get("pad_token"),
        "unk_token": named.get("unk_token"),
        "chat_template": None if served.chat_template is None else served.chat_template.source,
    }
