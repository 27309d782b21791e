"""Turns chat messages and tools into what the model's chat template renders.

Owns what the model is shown of them; knows nothing of sampling or of replies.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.config import ServerSettings
from server.http.body import MAX_DEPTH, depth_of, has_more_parts
from server.http.errors import invalid
from server.prompts.chat_template import ChatTemplate, Conversation
from server.prompts.message_forms import REASONING, CallArguments
from server.prompts.special_tokens import SpecialTokens, unused_mark
from server.schemas.messages import ChatMessage, ImagePart, ImageUrl, Part, TextPart, text_of
from server.schemas.tools import Tool

MAX_ARGUMENTS = 65536  # objects, lists and members in the arguments of a conversation's calls
TOOLS_BEGIN = "You may call one or more functions to help with the user's request."
TOOL_INTRODUCTION = (
    f"{TOOLS_BEGIN} The functions are described by these JSON "
    "objects, one a line:\n<tools>\n{tools}\n</tools>\nTo call a function, reply with its name and arguments as a "
    'JSON object between tags:\n<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>'
)


def require_template(template: ChatTemplate | None, requested: str | None, settings: ServerSettings) -> ChatTemplate:
    """The server's template, or the request's own where that is allowed. Raises ApiError where there is none."""
    if requested is not None:
        if not settings.trust_request_chat_template:
            message = "This server does not take chat templates from requests."
            raise invalid(message, "chat_template", "unsupported_parameter")
        return (template or ChatTemplate({}, {})).replaced_by(requested)
    if template is None:
        message = "This model has no chat template; use /v1/completions."
        raise invalid(message, "messages", "no_chat_template")
    return template


@dataclass(frozen=True, slots=True)
class ChatInput:
    """What a client wants rendered. options: further names for the template; sees: whether the model takes pictures."""

    messages: Sequence[ChatMessage]
    tools: Sequence[Tool]
    options: Mapping[str, Any]
    sees: bool = False

    @property
    def images(self) -> list[ImageUrl]:
        """All pictures, in order."""
        contents = (message.content for message in self.messages)
        parts = (part for content in contents if isinstance(content, list) for part in content)
        return [part.image_url for part in parts if isinstance(part, ImagePart)]


def conversation_of(given: ChatInput, template: ChatTemplate, special_tokens: SpecialTokens) -> Conversation:
    """What the template renders: the client's input, with the names of special tokens broken up so that they stay text.

    Where the template does not know tools, a system message describes them. Raises ApiError where there is no message,
    and for calls whose arguments have too many parts or are nested too deeply.
    """
    if not given.messages:
        raise invalid("Nothing of this is shown to the model: there must be a message.", "messages", "empty_prompt")
    arguments = [call.function.arguments for message in given.messages for call in message.tool_calls]
    if has_more_parts("\n".join(arguments).encode("utf-8", "surrogatepass"), MAX_ARGUMENTS):
        message = f"The arguments of all tool calls have more than {MAX_ARGUMENTS} objects, lists and members."
        raise invalid(message, "messages", "above_limit")
    images = given.images
    texts = [text_of(message.content) for message in given.messages]
    image_mark = unused_mark([texts, given.options]) if images or (given.sees and template.takes_parts) else ""
    messages = [_message(message, template, image_mark) for message in given.messages]
    described = [_described(tool) for tool in given.tools if tool.is_shown]
    mark = special_tokens.mark_for([messages, described, given.options, image_mark])
    shown: list[dict[str, Any]] = special_tokens.broken_up(messages, mark)
    described = special_tokens.broken_up(described, mark)
    wanted = []
    if template.knows("tool_calls"):
        _add_texts(shown, special_tokens.broken_up(arguments, mark))
    else:
        shown = [_written_out(message) for message in shown]
        results = [message["content"].strip() for message in shown if message["role"] == "tool"]
        wanted += [result for result in results if not image_mark or image_mark not in result][-1:]
    if described and not template.knows("tools"):
        lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in described)
        introduction = TOOL_INTRODUCTION.format(tools=lines)
        if shown[0]["role"] == "system":
            shown[0] = shown[0] | {"content": f"{shown[0]['content']}\n\n{introduction}"}
        else:
            shown.insert(0, {"role": "system", "content": introduction})
        described = []
        wanted.append(TOOLS_BEGIN)
    options = special_tokens.broken_up(dict(given.options), mark)
    return Conversation(
        messages=shown, tools=described, options=options, mark=mark, wanted=wanted, image_mark=image_mark, images=images
    )


def _message(message: ChatMessage, template: ChatTemplate, image_mark: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not template.knows("developer") else message.role
    content = _shown(message.content, image_mark) or message.refusal or ""
    is_null = not content and message.tool_calls and template.asks_for_null
    shown: dict[str, Any] = {"role": role, "content": None if is_null else content}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.thought is not None:
        shown |= dict.fromkeys(REASONING, message.thought)
    if message.tool_calls:
        functions = [
            {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
            for call in message.tool_calls
        ]
        shown["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function}
            for call, function in zip(message.tool_calls, functions, strict=True)
        ]
    return shown


def _shown(content: str | list[Part] | None, image_mark: str) -> str:
    """The content's text, with the mark where it has pictures."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else image_mark for part in content)


def _written_out(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its calls written into its content, for templates that do not know calls."""
    shown = dict(message)
    functions = (call["function"] for call in shown.pop("tool_calls", ()))
    written = (f"<tool_call>\n{json.dumps(each, ensure_ascii=False)}\n</tool_call>" for each in functions)
    return shown | {"content": "\n".join(text for text in (message["content"], *written) if text)}


def _add_texts(messages: Sequence[Mapping[str, Any]], texts: Sequence[str]) -> None:
    """Add to the arguments of each call their text."""
    calls = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    for call, text in zip(calls, texts, strict=True):
        if isinstance(call["arguments"], dict):
            call["arguments"] = CallArguments(call["arguments"], text if call["arguments"] else "{}")


def _arguments(text: str) -> dict[str, Any] | str:
    """A call's arguments as an object, because templates write them as JSON themselves. Of a call without arguments it
    is empty; text that is no object stays text. Raises ApiError for arguments nested too deeply."""
    too_deep = f"The arguments of a tool call are nested more than {MAX_DEPTH} deep."
    try:
        value = json.loads(text.strip() or "{}")
    except ValueError:
        return text
    except RecursionError:
        raise invalid(too_deep, "messages", "above_limit") from None
    if depth_of(value) > MAX_DEPTH:
        raise invalid(too_deep, "messages", "above_limit")
    if value in (None, "", []):
        return {}
    return value if isinstance(value, dict) else text


def _described(tool: Tool) -> dict[str, Any]:
    function = tool.function
    described = {"name": function.name, "description": function.description, "parameters": function.schema_of_arguments}
    return {"type": "function", "function": described}
