"""Renders a chat request's prompt, and chooses the grammar and the parser of its reply (tool calls, reasoning).

Knows nothing of the engine.
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from starlette.requests import Request

from server.endpoints.rendered_prompt import render_prompt
from server.grammars.chat_constraint import chat_constraint
from server.grammars.constraint import Constraint
from server.http.errors import invalid
from server.http.notices import tell
from server.parsing.parts import Parser, PlainParser
from server.parsing.reply_parser import CallsWanted, ReplyParser
from server.parsing.template_parser import TemplateParser
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.conversation import ChatInput, conversation_of, require_template
from server.prompts.images.processor import ProcessedImage
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.chat import ChatRequest
from server.service import Service

ID_LETTERS = 9  # Mistral's chat templates refuse call ids of any other length
THINKING_SWITCH = "enable_thinking"  # as Qwen's and others' templates call it
USUAL = "medium"  # the default of reasoning_effort, which a template need not know


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat's request, the prompt that the template makes of it, and the pictures in it."""

    body: ChatRequest
    template: ChatTemplate
    prompt: MarkedText
    images: Sequence[ProcessedImage] = ()


@dataclass(frozen=True, slots=True)
class ReplyReading:
    """The grammar that constrains the reply to a prompt, and the parser that reads the reply."""

    constraint: Constraint | None
    make_parser: Callable[[], Parser]
    shows_special_tokens: bool


async def render_chat(
    request: Request, make_body: Callable[[], ChatRequest], service: Service, model: ServedModel, more_bytes: int = 0
) -> RenderedChat:
    """Render the messages of the chat request that `make_body` makes of the body and of `more_bytes` that were stored.
    Raises ApiError for what the template or this server cannot do."""
    body, template, conversation = await service.work_on(request, lambda: _conversation(make_body(), model), more_bytes)
    return RenderedChat(body, template, *await render_prompt(request, service, model, template, conversation))


def _conversation(body: ChatRequest, model: ServedModel) -> tuple[ChatRequest, ChatTemplate, Conversation]:
    """The chat request, with the template that renders it and what that renders."""
    template = require_template(model.chat_template, body.chat_template, model.settings)
    may_think = bool(template.reply_format.thoughts or template.reply_format.template)
    options, sees = _options(body, template, may_think), model.tokenizer.images is not None
    given = ChatInput(body.messages, body.callable_tools, options, sees)
    conversation = replace(
        conversation_of(given, template, model.tokenizer.special_tokens),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return body, template, conversation


def reading_of(chat: RenderedChat, model: ServedModel) -> ReplyReading:
    """How the reply is constrained and read. Raises ApiError for what this server cannot do."""
    body, tools = chat.body, chat.body.callable_tools
    format_, prompt = chat.template.reply_format, chat.prompt.text.rstrip()
    open_thought = next((closing for opening, closing in format_.thoughts if prompt.endswith(opening.rstrip())), "")
    if any(prompt.endswith(closing.strip()) for _, closing in format_.thoughts):
        format_ = replace(format_, thoughts=())
    constraint = chat_constraint(body, tools, format_, open_thought, model.tokenizer.marks.get, model.settings)
    if constraint is not None and not constraint.may_think:
        format_, open_thought = replace(format_, thoughts=()), ""
    wanted = CallsWanted(
        schemas={tool.function.name: tool.function.schema_of_arguments for tool in tools},
        make_id=partial(_call_id, format_.call_id, sum(len(message.tool_calls) for message in body.messages)),
        max_calls=None if body.parallel_tool_calls else 1,
        is_forced=body.choice_of_tool.mode in ("required", "named"),
    )

    def make_parser() -> Parser:
        if format_.template is not None:
            return TemplateParser(format_.template, wanted, chat.prompt.plain)
        if not (wanted.schemas or format_.thoughts or format_.frames):
            return PlainParser()
        return ReplyParser(format_, wanted, open_thought)

    marks = (format_ if tools else replace(format_, calls=())).marks
    shows_special_tokens = format_.template is not None or any(
        model.tokenizer.special_tokens.are_in(mark) for mark in marks
    )
    return ReplyReading(constraint, make_parser, shows_special_tokens)


def _options(body: ChatRequest, template: ChatTemplate, may_think: bool) -> dict[str, Any]:
    """The names that a template gets beside messages and tools. What it does not know changes nothing; of an effort
    that is not the usual one the client is told so, where the model reasons. Raises ApiError where reasoning is to be
    turned off and cannot be."""
    options = dict(body.chat_template_kwargs)
    for name in ("reasoning_effort", "verbosity"):
        value = getattr(body, name)
        if value is None:
            continue
        if template.knows(name):
            options[name] = value
        elif name == "reasoning_effort" and value == "none" and template.knows(THINKING_SWITCH):
            options[THINKING_SWITCH] = False
        elif name == "reasoning_effort" and value == "none" and may_think:
            message = f"{name}: this model's chat template cannot turn reasoning off; leave it out."
            raise invalid(message, name, "unsupported_parameter")
        elif name == "reasoning_effort" and value != USUAL and may_think:
            tell(f"{name} changes nothing: this model's chat template does not know it.")
    return options


def _call_id(form: str, num_earlier: int, name: str, number: int) -> str:
    """The id of a call. form: see `Family.call_id`; num_earlier: calls of earlier messages, from which ids count on."""
    letters = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID_LETTERS))
    return form.format(hex=uuid.uuid4().hex[:24], letters=letters, name=name, number=num_earlier + number)
