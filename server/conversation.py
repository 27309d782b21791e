"""From a chat request to the text of its prompt: messages as templates expect them, tools, the reply's parser.

Owns what is told to the model; knows nothing of sampling.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import string
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.grammar import Grammar
from server.chat_template import ChatTemplate, Conversation
from server.config import ServerSettings
from server.constraint import grammar_of, parameters_of, required_calls_schema, schema_grammar
from server.errors import invalid
from server.parsing.families import Family, call_parser, family_of
from server.parsing.forced import NamedParser, RequiredParser
from server.parsing.parts import CallWriter, Parser, PlainParser
from server.parsing.thinking import OPEN, ThinkingParser, thinks
from server.prompts import SHORT_TEXT
from server.schemas.chat import ChatRequest
from server.schemas.messages import ChatMessage
from server.schemas.tools import Tool

TOOL_INTRODUCTION = (
    "You may call one or more functions to help with the user's request. The functions are described by these JSON "
    "objects, one a line:\n<tools>\n{tools}\n</tools>\nTo call a function, reply with its name and arguments as a "
    'JSON object between tags:\n<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>'
)
MISTRAL_ID_LENGTH = 9  # its templates insist


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """The prompt's text, and how to read the reply to it."""

    text: str
    grammar: Grammar | None
    make_parser: Callable[[], Parser]
    shows_special_tokens: bool


async def render_chat(body: ChatRequest, template: ChatTemplate | None, settings: ServerSettings) -> RenderedChat:
    """Raises ApiError for what the template or this server cannot do."""
    template = require_template(template, body.chat_template, settings)
    tools = body.tools if body.choice_of_tool.mode != "none" else []
    options = _options(body, template)
    conversation = conversation_of(body.messages, tools, template, options)
    conversation = Conversation(
        messages=conversation.messages,
        tools=conversation.tools,
        options=options,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )
    text = await render(template, conversation)
    grammar = grammar_of(body, settings)
    forced = _forced_grammar(body, settings)
    if forced is not None and grammar is not None:
        raise invalid("A required tool call and another constraint cannot be given together.", "tool_choice")
    family = family_of(template.text) if settings.tool_parser == "auto" else settings.tool_parser
    is_thinking = grammar is None and forced is None and _is_thinking(template, settings)
    starts_inside = text.rstrip().endswith(OPEN)
    max_calls = None if body.parallel_tool_calls else 1

    def make_parser() -> Parser:
        rest = _parser(body, tools, family, max_calls)
        return ThinkingParser(rest, starts_inside) if is_thinking else rest

    is_auto = bool(tools) and forced is None
    return RenderedChat(text, grammar or forced, make_parser, is_auto and family in ("llama3", "mistral"))


async def render(template: ChatTemplate, conversation: Conversation) -> str:
    """In a thread where it may take long, so that streams go on."""
    if sum(len(message["content"]) for message in conversation.messages) <= SHORT_TEXT:
        return template.render(conversation)
    return await asyncio.to_thread(template.render, conversation)


def require_template(template: ChatTemplate | None, requested: str | None, settings: ServerSettings) -> ChatTemplate:
    """The server's template, or the request's own where that is allowed."""
    if requested is not None:
        if not settings.trust_request_chat_template:
            message = "This server does not take chat templates from requests."
            raise invalid(message, "chat_template", "unsupported_parameter")
        return (template or ChatTemplate({}, {})).replaced_by(requested)
    if template is None:
        message = "This model has no chat template; use /v1/completions."
        raise invalid(message, "messages", "no_chat_template")
    return template


def conversation_of(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], template: ChatTemplate, options: dict[str, Any]
) -> Conversation:
    """What the template is given. One that knows nothing of tools is told of them in a message of the system's."""
    shown = [_message(message, template) for message in messages]
    described = [_described(tool) for tool in tools]
    if described and not template.knows("tools"):
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in described)
        introduction = TOOL_INTRODUCTION.format(tools=lines)
        if shown[0]["role"] == "system":
            shown[0] = shown[0] | {"content": f"{shown[0]['content']}\n\n{introduction}"}
        else:
            shown.insert(0, {"role": "system", "content": introduction})
        described = []
    return Conversation(messages=shown, tools=described, options=options)


def _message(message: ChatMessage, template: ChatTemplate) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not template.knows("developer") else message.role
    shown: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        shown["reasoning_content"] = reasoning
    if message.tool_calls:
        shown["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": _arguments(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
        if not template.knows("tool_calls"):
            calls = (
                {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
                for call in message.tool_calls
            )
            written = (f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>" for call in calls)
            shown["content"] = "\n".join(text for text in (shown["content"], *written) if text)
    return shown


def _arguments(text: str) -> Any:
    """Templates print arguments as JSON, so they want the object."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _described(tool: Tool) -> dict[str, Any]:
    function = tool.function
    described = {"name": function.name, "description": function.description, "parameters": parameters_of(tool)}
    return {"type": "function", "function": described}


def _options(body: ChatRequest, template: ChatTemplate) -> dict[str, Any]:
    options = dict(body.chat_template_kwargs)
    for name in ("reasoning_effort", "verbosity"):
        value = getattr(body, name)
        if value is not None:
            if not template.knows(name):
                message = f"{name}: this model's chat template does not know it; leave it out."
                raise invalid(message, name, "unsupported_parameter")
            options[name] = value
    return options


def _forced_grammar(body: ChatRequest, settings: ServerSettings) -> Grammar | None:
    choice = body.choice_of_tool
    if choice.mode == "required":
        schema = required_calls_schema(body.tools, None if body.parallel_tool_calls else 1)
        return schema_grammar(schema, "tools", settings)
    if choice.mode == "named":
        tool = next(tool for tool in body.tools if tool.function.name == choice.name)
        return schema_grammar(parameters_of(tool), "tools", settings)
    return None


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
