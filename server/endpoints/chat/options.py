"""Turns a chat request into generation options. /v1/responses and /v1/messages make a chat request of theirs first."""

from __future__ import annotations

from server.endpoints.chat.rendered_chat import RenderedChat, reading_of
from server.generation.options import GenerationOptions
from server.http.errors import invalid, require_at_most
from server.prompts.encoding import EncodedPrompt, PromptReading, encode_rendered
from server.prompts.images.placing import placed
from server.prompts.served_model import ServedModel


def chat_options(chat: RenderedChat, model: ServedModel, id_prefix: str = "chatcmpl-") -> GenerationOptions:
    """The options of a chat. Raises ApiError for what this server cannot do."""
    body = chat.body
    require_at_most(body.top_logprobs or 0, model.settings.max_logprobs, "top_logprobs")
    reply = reading_of(chat, model)
    reading = PromptReading(body.add_special_tokens, is_cut=body.truncate_prompt_tokens is not None)
    token_ids = encode_rendered(model, chat.prompt, reading)
    if not token_ids:
        raise invalid("The messages make an empty prompt.", "messages", "empty_prompt")
    if chat.images and reading.is_cut:
        raise invalid("A prompt with pictures cannot be cut: leave this out.", "truncate_prompt_tokens")
    pictures = placed(chat.images, token_ids, model.tokenizer.images)
    names = {"prompt": "messages"}
    if body.max_completion_tokens:
        names["max_tokens"] = "max_completion_tokens"
    if reply.constraint is not None:
        names["grammar"] = reply.constraint.param
    return GenerationOptions(
        id_prefix=id_prefix,
        prompts=[EncodedPrompt(token_ids, chat.prompt.plain, pictures=pictures)],
        max_tokens=body.max_completion_tokens or body.max_tokens,
        default_max_tokens=model.settings.default_max_tokens or model.settings.max_reply_tokens,
        num_choices=body.n,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        prompt_logprobs=body.prompt_logprobs,
        grammar=None if reply.constraint is None else reply.constraint.grammar,
        loose_schema=None if reply.constraint is None else reply.constraint.loose,
        make_parser=reply.make_parser,
        shows_special_tokens=reply.shows_special_tokens,
        names=names,
    )
