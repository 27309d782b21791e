"""Converts requests of /api/chat and /api/generate to the chat or completion requests that mean the same. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from server.schemas.chat import ChatRequest
from server.schemas.completions import CompletionRequest
from server.schemas.messages import (
    CalledFunction,
    ChatMessage,
    ImagePart,
    ImageUrl,
    MessageToolCall,
    TextPart,
)
from server.schemas.ollama.requests import (
    GeneratingRequest,
    OllamaCall,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
)
from server.schemas.structured import NamedSchema, ResponseFormat

# The fields of the requests that are made, and what Ollama calls them: errors name the latter.
OPTION_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "stop": "stop",
    "max_tokens": "num_predict",
}
NAMES = {made: f"options.{name}" for made, name in OPTION_NAMES.items()} | {
    "response_format": "format",
    "response_format.json_schema.schema": "format",
    "reasoning_effort": "think",
    "continue_final_message": "messages",
}
PROMPT_NAMES = NAMES | {"messages": "prompt"}


def chat_request(body: OllamaChatRequest) -> ChatRequest:
    """Convert a conversation. A last message of the assistant is continued. The body is already validated."""
    is_begun = body.messages[-1].role == "assistant" and bool(body.messages[-1].content)
    return ChatRequest.model_construct(
        **_shared(body),
        **_of_chats(body),
        messages=list(_messages(body.messages)),
        tools=body.tools,
        add_generation_prompt=not is_begun,
        continue_final_message=is_begun,
    )


def prompt_as_chat(body: OllamaGenerateRequest) -> ChatRequest:
    """Convert a prompt that the chat template shows, after the system's message if there is one."""
    system = [ChatMessage(role="system", content=body.system)] if body.system else []
    messages = [*system, ChatMessage(role="user", content=_content(body.images, body.prompt))]
    return ChatRequest.model_construct(**_shared(body), **_of_chats(body), messages=messages)


def completion_request(body: OllamaGenerateRequest) -> CompletionRequest:
    """Convert a prompt that the model gets as it stands."""
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return CompletionRequest.model_construct(
        **_shared(body), prompt=[body.prompt], suffix=body.suffix, logprobs=logprobs
    )


def _shared(body: GeneratingRequest) -> dict[str, Any]:
    """The fields of chat and completion requests alike."""
    options = body.options
    length, seed = options.num_predict, options.seed
    return {
        "stream": body.stream,
        "response_format": _format(body),
        "max_tokens": None if length is None or length < 1 else length,
        "seed": None if seed is None or seed < 0 else seed,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "stop": options.stop,
        "repetition_penalty": options.repeat_penalty if options.repeat_last_n else 1.0,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
    }


def _of_chats(body: GeneratingRequest) -> dict[str, Any]:
    effort = body.think if isinstance(body.think, str) else None
    return {
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": "none" if body.think is False else effort,
        "chat_template_kwargs": {"enable_thinking": True} if body.think else {},
    }


def _format(body: GeneratingRequest) -> ResponseFormat | None:
    if not body.format:
        return None
    if isinstance(body.format, str):
        return ResponseFormat(type="json_object")
    return ResponseFormat(type="json_schema", json_schema=NamedSchema(schema=body.format))


def _messages(messages: list[OllamaMessage]) -> Iterator[ChatMessage]:
    """The chat messages. Calls get ids, which Ollama's clients do not send back, and their results name these."""
    waiting: list[MessageToolCall] = []  # calls without a result
    num_calls = 0
    for message in messages:
        if message.role == "tool":
            yield _result(message, waiting)
            continue
        calls = [_call(call, number) for number, call in enumerate(message.tool_calls, start=num_calls)]
        num_calls += len(calls)
        waiting += calls
        content = _content(message.images, message.content)
        yield ChatMessage(
            role=message.role, content=content, tool_calls=calls, reasoning_content=message.thinking or None
        )


def _content(images: list[str], text: str) -> str | list[ImagePart | TextPart]:
    """Pictures, then text, as Ollama shows them. images: files in base64."""
    urls = (each if each.startswith("data:") else f"data:image/png;base64,{each}" for each in images)
    parts = [ImagePart(image_url=ImageUrl(url=url)) for url in urls]
    return [*parts, TextPart(text=text)] if parts else text


def _call(call: OllamaCall, number: int) -> MessageToolCall:
    """number: of the call in the conversation. Its id has nine letters, as Mistral's templates want them."""
    arguments = json.dumps(call.function.arguments, ensure_ascii=False)
    function = CalledFunction(name=call.function.name, arguments=arguments)
    return MessageToolCall(id=call.id or f"call{number:05}", function=function)


def _result(message: OllamaMessage, waiting: list[MessageToolCall]) -> ChatMessage:
    """The message of a tool, whose call is taken from `waiting`: that of its id, else the first of its name, else the
    first."""
    name = message.tool_name or message.name
    by_id = [call for call in waiting if call.id == message.tool_call_id]
    by_name = [call for call in waiting if call.function.name == name]
    answered = next(iter(by_id or by_name or waiting), None)
    if answered is not None:
        waiting.remove(answered)
    call_id = message.tool_call_id or (answered.id if answered is not None else "call00000")
    return ChatMessage(role="tool", content=_content(message.images, message.content), name=name, tool_call_id=call_id)
