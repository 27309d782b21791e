"""Converts a request of /v1/messages to the chat request that means the same. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from server.endpoints.thoughts import thought_in
from server.http.errors import require_at_most
from server.schemas.anthropic import CountRequest, MessageTool
from server.schemas.anthropic_messages import ContentBlock, ResultPart, Role
from server.schemas.chat import ChatRequest
from server.schemas.generation import SamplingRequest, StreamOptions
from server.schemas.messages import (
    MAX_CALLS,
    CalledFunction,
    ChatMessage,
    ImagePart,
    ImageUrl,
    MessageToolCall,
    TextPart,
    text_of,
)
from server.schemas.structured import NamedSchema, ResponseFormat
from server.schemas.tools import DeferredTool, FunctionDefinition, Tool

# The chat request's fields, and what /v1/messages calls them: errors name the latter.
NAMES = {
    "stop": "stop_sequences",
    "continue_final_message": "messages",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}


def names_of(body: CountRequest) -> Mapping[str, str]:
    """What this body calls the fields of its `chat_request`."""
    return NAMES | {"reasoning_effort": "thinking"} if body.thinking.type == "disabled" else NAMES


def chat_request(body: CountRequest) -> ChatRequest:
    """Copy the fields that both requests share and convert the rest, all but max_tokens. The body is already validated.
    Raises ApiError where a message has too many tool calls."""
    shared = {name: getattr(body, name) for name in SamplingRequest.model_fields}
    system = [ChatMessage(role="system", content=_text(body.system))] if body.system else []
    chosen, effort = body.tool_choice, body.output_config.effort
    return ChatRequest.model_construct(
        **shared,
        messages=[*system, *_messages(body)],
        response_format=_format(body),
        tools=[_tool(tool, tool.defer_loading and tool.name in body.referenced) for tool in body.offered_tools],
        tool_choice=None if chosen is None else chosen.choice,
        parallel_tool_calls=chosen is None or not chosen.disable_parallel_tool_use,
        reasoning_effort="none" if body.thinking.type == "disabled" else effort,
        chat_template_kwargs={"enable_thinking": True} if body.thinking.type == "enabled" else {},
        add_generation_prompt=not body.is_begun,
        continue_final_message=body.is_begun,
        stream_options=StreamOptions(),
    )


def _tool(tool: MessageTool, is_deferred: bool) -> Tool:
    """The examples become the schema's, which templates show whole."""
    parameters = tool.input_schema | ({"examples": tool.input_examples} if tool.input_examples else {})
    function = FunctionDefinition(
        name=tool.name, description=tool.description, parameters=parameters, strict=tool.strict
    )
    return (DeferredTool if is_deferred else Tool)(type="function", function=function)


def _format(body: CountRequest) -> ResponseFormat | None:
    form = body.output_config.format
    if form is None:
        return None
    return ResponseFormat(type=form.type, json_schema=NamedSchema(schema=form.definition, strict=True))


def _messages(body: CountRequest) -> Iterator[ChatMessage]:
    """The chat messages. Neighbouring messages of one role are one turn."""
    tools = {tool.name: tool for tool in body.offered_tools}
    for role, turn in groupby(body.shown, key=lambda message: message.role):
        blocks = [block for message in turn for block in message.content]
        if role == "assistant":
            yield _said(blocks)
        else:
            yield from _told(role, blocks, tools)


def _said(blocks: Sequence[ContentBlock]) -> ChatMessage:
    """One assistant message, from what it thought, said and called."""
    thought = "\n".join(block.thinking or thought_in(block.signature) for block in blocks if block.type == "thinking")
    calls = [block for block in blocks if block.type == "tool_use"]
    require_at_most(len(calls), MAX_CALLS, "messages")
    return ChatMessage(
        role="assistant", content=_text(blocks), tool_calls=list(map(_call, calls)), reasoning_content=thought or None
    )


def _told(role: Role, blocks: Sequence[ContentBlock], tools: Mapping[str, MessageTool]) -> Iterator[ChatMessage]:
    """Messages of a user or the system; each tool result becomes a message of its own, in the blocks' order."""
    if not blocks:
        yield ChatMessage(role=role, content="")
    for is_result, group in groupby(blocks, key=lambda block: block.type == "tool_result"):
        if not is_result:
            yield ChatMessage(role=role, content=_parts(list(group), {}))
            continue
        for block in group:
            content = _parts(block.content, tools)
            if block.is_error:
                content = f"Error: {content}" if isinstance(content, str) else [TextPart(text="Error: "), *content]
            yield ChatMessage(role="tool", content=content, tool_call_id=block.tool_use_id)


def _parts(
    blocks: Sequence[ContentBlock | ResultPart], tools: Mapping[str, MessageTool]
) -> str | list[TextPart | ImagePart]:
    """Text, or texts and pictures in their order."""
    parts: list[TextPart | ImagePart] = []
    for is_image, group in groupby(blocks, key=lambda block: block.type == "image"):
        if is_image:
            sources = [block.source for block in group if block.source is not None]
            parts += [ImagePart(image_url=ImageUrl(url=source.data_url)) for source in sources]
        else:
            parts.append(TextPart(text="\n".join(_lines(list(group), tools))))
    return parts if any(isinstance(part, ImagePart) for part in parts) else text_of(parts)


def _lines(parts: Sequence[ContentBlock | ResultPart], tools: Mapping[str, MessageTool]) -> Iterator[str]:
    """What a tool's result shows. Tools that it refers to are written as Claude Code says that they will be."""
    for is_text, group in groupby(parts, key=lambda part: part.type == "text"):
        if is_text:
            yield from (part.text or "" for part in group)
            continue
        yield "<functions>"
        for part in group:
            assert isinstance(part, ResultPart), part
            function = _tool(tools[part.tool_name or ""], is_deferred=True).function
            shown = {"description": function.description, "name": function.name, "parameters": function.parameters}
            yield f"<function>{json.dumps(shown, ensure_ascii=False)}</function>"
        yield "</functions>"


def _text(blocks: Sequence[ContentBlock]) -> str:
    return "\n".join(block.text for block in blocks if block.text is not None)


def _call(block: ContentBlock) -> MessageToolCall:
    arguments = json.dumps(block.input, ensure_ascii=False)
    function = CalledFunction(name=block.name or "", arguments=arguments)
    return MessageToolCall(id=block.id or "", function=function)
