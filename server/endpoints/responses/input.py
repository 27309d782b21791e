"""Converts a request of /v1/responses to the chat request that means the same. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from server.endpoints.thoughts import thought_in
from server.http.errors import require_at_most
from server.schemas.chat import ChatRequest
from server.schemas.generation import SamplingRequest, StreamOptions
from server.schemas.messages import MAX_CALLS, CalledFunction, ChatMessage, MessageToolCall, text_of
from server.schemas.response_tools import CustomTool, FunctionTool, OfferedTool
from server.schemas.responses import InputItem, ResponseRequest
from server.schemas.structured import NamedSchema, ResponseFormat
from server.schemas.tools import FunctionDefinition, TextTool, Tool, shown_name

FORMS = {"lark": "a grammar in Lark", "regex": "a regular expression"}
# The arguments of a custom tool's call.
INPUT: Mapping[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


def chat_request(body: ResponseRequest, items: Sequence[InputItem]) -> ChatRequest:
    """Copy the fields that both requests share and convert the rest. The body is already validated; items: all of the
    conversation, earlier responses included. Raises ApiError where a message has too many tool calls."""
    shared = {name: getattr(body, name) for name in SamplingRequest.model_fields}
    system = [] if body.instructions is None else [ChatMessage(role="system", content=body.instructions)]
    return ChatRequest.model_construct(
        **shared,
        messages=[*system, *_messages(items)],
        max_completion_tokens=body.max_output_tokens,
        logprobs=body.wants_logprobs,
        top_logprobs=body.top_logprobs,
        response_format=_format(body),
        tools=list(map(_tool, body.offered)),
        tool_choice=None if body.tool_choice is None else body.chosen,
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=body.reasoning.effort,
        verbosity=body.text.verbosity,
        stream_options=StreamOptions(),
    )


def _tool(offered: OfferedTool) -> Tool:
    """The function that the model is shown. A custom tool's has one argument, its input."""
    tool = offered.tool
    form = tool.text_form if isinstance(tool, CustomTool) else None
    grammar = "" if form is None else f"The input has this form, {FORMS[form.syntax]}:\n{form.definition}"
    function = FunctionDefinition.model_construct(
        name=offered.shown_name,
        description="\n\n".join(filter(None, (offered.heading, tool.description, grammar))),
        parameters=INPUT if isinstance(tool, CustomTool) else tool.parameters,
        strict=form is not None or (isinstance(tool, FunctionTool) and tool.strict),
    )
    return (
        Tool(type="function", function=function)
        if form is None
        else TextTool(type="function", function=function, form=form)
    )


def _format(body: ResponseRequest) -> ResponseFormat | None:
    form = body.text.format
    if form is None:
        return None
    schema = None if form.definition is None else NamedSchema(schema=form.definition, strict=form.strict)
    return ResponseFormat(type=form.type, json_schema=schema)


def _call(item: InputItem) -> MessageToolCall:
    is_custom = item.type == "custom_tool_call"
    arguments = json.dumps({"input": item.input}, ensure_ascii=False) if is_custom else item.arguments
    function = CalledFunction(name=shown_name(item.name or "", item.namespace), arguments=arguments or "")
    return MessageToolCall(id=item.call_id or "", function=function)


def _messages(items: Sequence[InputItem]) -> list[ChatMessage]:
    """The chat messages. What the assistant thought, said and called between two other messages becomes one message.

    Raises ApiError where a message has too many tool calls.
    """
    messages: list[ChatMessage] = []
    thoughts, said, calls = list[str](), None, list[MessageToolCall]()

    def end_turn() -> None:
        nonlocal thoughts, said, calls
        require_at_most(len(calls), MAX_CALLS, "input")
        if said is not None or calls or thoughts:
            thought = "\n".join(thoughts) or None
            messages.append(ChatMessage(role="assistant", content=said, tool_calls=calls, reasoning_content=thought))
        thoughts, said, calls = [], None, []

    for item in items:
        match item.type:
            case "reasoning":
                if said is not None or calls:
                    end_turn()
                thought = text_of(item.content) or thought_in(item.encrypted_content or "")
                thoughts += [thought] if thought else []
            case "function_call" | "custom_tool_call":
                calls.append(_call(item))
            case "message" if item.role == "assistant":
                if said is not None or calls:
                    end_turn()
                said = item.content
            case "message":
                end_turn()
                messages.append(ChatMessage(role=item.role or "user", content=item.content))
            case "function_call_output" | "custom_tool_call_output":
                end_turn()
                messages.append(ChatMessage(role="tool", content=item.output, tool_call_id=item.call_id))
    end_turn()
    return messages
