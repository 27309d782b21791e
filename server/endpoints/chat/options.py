"""Turns a chat request into generation options. /v1/responses and /v1/messages make a chat request of theirs first."""

from __future__ import annotations

from server.endpoints.chat.rendered_chat import render_chat
from server.generation.options import GenerationOptions
from server.http.errors import invalid, require_at_most
from server.prompts.encoding import EncodedPrompt, PromptReading, encode_rendered
from server.prompts.served_model import ServedModel
from server.schemas.chat import ChatRequest


def chat_options(body: ChatRequest, model: ServedModel, id_prefix: str = "chatcmpl-") -> GenerationOptions:
    """The options of a chat. Raises ApiError for what the chat template or this server cannot do."""
    require_at_most(body.top_logprobs or 0, model.settings.max_logprobs, "top_logprobs")
    chat = render_chat(body, model.chat_template, model.settings, model.tokenizer.special_tokens)
    reading = PromptReading(body.add_special_tokens, is_cut=body.truncate_prompt_tokens is not None)
    token_ids = encode_rendered(model, chat.prompt, reading)
    if not token_ids:
        raise invalid("The messages make an empty prompt.", "messages", "empty_prompt")
    names = {"prompt": "messages"}
    if body.max_completion_tokens:
        names["max_tokens"] = "max_completion_tokens"
    if chat.constraint is not None:
        names["grammar"] = chat.constraint.param
    return GenerationOptions(
        id_prefix=id_prefix,
        prompts=[EncodedPrompt(token_ids, chat.prompt.plain)],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        default_max_tokens=model.settings.max_reply_tokens,
        num_choices=body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        grammar=None if chat.constraint is None else chat.constraint.grammar,
        make_parser=chat.make_parser,
        shows_special_tokens=chat.shows_special_tokens,
        names=names,
    )
