"""POST /tokenize and /detokenize: text and messages to token ids as this server encodes them, and back."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Request

from server.endpoints.openapi import error_replies
from server.prompts.conversation import ChatInput, conversation_of, render, require_template
from server.prompts.encoding import PromptReading, encode_rendered, encode_text, require_in_vocabulary
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.catalog import DetokenizeReply, DetokenizeRequest, TokenizeReply, TokenizeRequest
from server.service import service_of

router = APIRouter()


@router.post("/tokenize", responses=error_replies(400, 404, 413, 503))
async def tokenize(body: TokenizeRequest, request: Request) -> TokenizeReply:
    """The token ids of a prompt, or of messages as a chat completion would render them."""
    model = service_of(request).require_model(body.model)
    tokenizer = model.tokenizer
    if body.messages is None:
        reading = PromptReading(body.add_special_tokens is not False, body.parse_special)
        token_ids = await encode_text(tokenizer, body.prompt or "", "prompt", reading)
    else:
        token_ids = await encode_rendered(tokenizer, await _rendered(body, model), bool(body.add_special_tokens))
    names = [tokenizer.name_of(token_id) or "" for token_id in token_ids] if body.return_token_strs else None
    max_model_len = model.engine.max_model_len
    return TokenizeReply(count=len(token_ids), max_model_len=max_model_len, tokens=token_ids, token_strs=names)


async def _rendered(body: TokenizeRequest, model: ServedModel) -> MarkedText:
    template = require_template(model.chat_template, body.chat_template, model.settings)
    given = ChatInput(body.messages or (), body.tools, body.chat_template_kwargs)
    conversation = replace(
        conversation_of(given, template, model.tokenizer.special_tokens),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return await render(template, conversation)


@router.post("/detokenize", responses=error_replies(400, 404, 413, 503))
async def detokenize(body: DetokenizeRequest, request: Request) -> DetokenizeReply:
    """The text of token ids, special tokens included."""
    model = service_of(request).require_model(body.model)
    require_in_vocabulary(body.tokens, model.engine.vocab_size, "tokens")
    return DetokenizeReply(prompt=model.tokenizer.decode(body.tokens, skip_special_tokens=False))
