"""Renders a chat request's prompt, and chooses the grammar and the parser of its reply (tool calls, reasoning).

Knows nothing of the engine.
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from server.config import ServerSettings
from server.grammars.chat_constraint import chat_constraint
from server.grammars.constraint import Constraint
from server.http.errors import invalid
from server.parsing.families import Family, call_parser, family_of
from server.parsing.forced import NamedParser, RequiredParser
from server.parsing.parts import CallWriter, Parser, PlainParser
from server.parsing.thinking import OPEN, ThinkingParser, thinks
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.conversation import ChatInput, conversation_of, require_template
from server.prompts.served_model import ServedModel
from server.prompts.special_tokens import MarkedText
from server.schemas.chat import ChatRequest
from server.schemas.tools import Tool
from server.service import Service

MISTRAL_ID_LENGTH = 9  # Mistral's chat templates refuse call ids of any other length
THINKING_SWITCH = "enable_thinking"  # as Qwen's and others' templates call it
USUAL = "medium"  # the default of reasoning_effort and verbosity, which a template need not know


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A chat's request and the prompt that the template makes of it."""

    body: ChatRequest
    template: ChatTemplate
    prompt: MarkedText


@dataclass(frozen=True, slots=True)
class ReplyReading:
    """The grammar that constrains the reply to a prompt, and the parser that reads the reply."""

    constraint: Constraint | None
    make_parser: Callable[[], Parser]
    shows_special_tokens: bool


async def render_chat(
    request: Request, make_body: Callable[[], ChatRequest], service: Service, model: ServedModel
) -> RenderedChat:
    """Render the messages of the chat request that `make_body` makes. Raises ApiError for what the template or this
    server cannot do."""
    body, template, conversation = await service.work_on(request, lambda: _conversation(make_body(), model))
    return RenderedChat(body, template, await service.render(template, conversation))


def _conversation(body: ChatRequest, model: ServedModel) -> tuple[ChatRequest, ChatTemplate, Conversation]:
    """The chat request, with the template that renders it and what that renders."""
    template = require_template(model.chat_template, body.chat_template, model.settings)
    given = ChatInput(
        body.messages, body.callable_tools, _options(body, template, _is_thinking(template, model.settings))
    )
    conversation = replace(
        conversation_of(given, template, model.tokenizer.special_tokens),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    return body, template, conversation


def reading_of(chat: RenderedChat, settings: ServerSettings) -> ReplyReading:
    """How the reply is constrained and read. Raises ApiError for what this server cannot do."""
    body, tools, text = chat.body, chat.body.callable_tools, chat.template.text
    family = family_of(text) if settings.tool_parser == "auto" else settings.tool_parser
    constraint = chat_constraint(body, tools, family, settings)
    is_thinking = (constraint is None or constraint.is_free) and _is_thinking(chat.template, settings)
    starts_inside = chat.prompt.text.rstrip().endswith(OPEN)
    max_calls = None if body.parallel_tool_calls else 1

    def make_parser() -> Parser:
        rest = _parser(body, tools, family, max_calls)
        return ThinkingParser(rest, starts_inside) if is_thinking else rest

    shows_special_tokens = bool(tools) and body.choice_of_tool.mode == "auto" and family in ("llama3", "mistral")
    return ReplyReading(constraint, make_parser, shows_special_tokens)


def _options(body: ChatRequest, template: ChatTemplate, may_think: bool) -> dict[str, Any]:
    """The names that a template gets beside messages and tools. Raises ApiError for an effort or verbosity that the
    template does not know, unless it is the default or an effort for a model that does not reason."""
    options = dict(body.chat_template_kwargs)
    for name in ("reasoning_effort", "verbosity"):
        value = getattr(body, name)
        if value is None:
            continue
        if template.knows(name):
            options[name] = value
        elif name == "reasoning_effort" and value == "none" and template.knows(THINKING_SWITCH):
            options[THINKING_SWITCH] = False
        elif value != USUAL and (may_think or name != "reasoning_effort"):
            message = f"{name}: this model's chat template does not know it; leave it out."
            raise invalid(message, name, "unsupported_parameter")
    return options


def _parser(body: ChatRequest, tools: Sequence[Tool], family: Family, max_calls: int | None) -> Parser:
    make_id = _mistral_id if family == "mistral" else _call_id
    choice = body.choice_of_tool
    if choice.mode == "required":
        return RequiredParser(CallWriter(make_id))
    if choice.mode == "named":
        return NamedParser(CallWriter(make_id), choice.name)
    if not tools:
        return PlainParser()
    return call_parser(family, frozenset(tool.function.name for tool in tools), make_id, max_calls)


def _is_thinking(template: ChatTemplate, settings: ServerSettings) -> bool:
    return settings.reasoning_parser == "think" or (settings.reasoning_parser == "auto" and thinks(template.text))


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _mistral_id() -> str:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(MISTRAL_ID_LENGTH))
