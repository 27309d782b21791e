"""Other forms of a conversation's messages, for templates that refuse them as they are. Pure.

It imports little, because the process that renders a client's template starts with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

Message = dict[str, Any]
REASONING = ("reasoning_content", "reasoning", "thinking")  # the names by which templates read earlier thoughts


class CallArguments(dict[str, Any]):
    """The arguments of a call. They are an object to templates that write it as JSON themselves, and `text`, the JSON
    that the client sent, to those that print or concatenate it."""

    def __init__(self, arguments: dict[str, Any], text: str) -> None:
        super().__init__(arguments)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def __add__(self, text: str) -> str:
        return self._text + text

    def __radd__(self, text: str) -> str:
        return text + self._text

    def __reduce__(self) -> Any:
        return CallArguments, (dict(self), self._text)


def forms_of(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """The messages as they are, then with each change that makes a difference, then with all of these together."""
    yield messages
    together, num_changes = messages, 0
    for change in (_with_text_arguments, _with_said_thoughts, _without_null, _in_user_turns):
        changed = change(messages)
        if changed != messages:
            yield changed
            together, num_changes = change(together), num_changes + 1
    if num_changes > 1:
        yield together


def in_parts(messages: Sequence[Message], mark: str) -> list[Message]:
    """The messages with their content as lists of texts and pictures, as templates of models that see have it. mark:
    stands in the content for a picture."""
    return [message | {"content": _parts(message["content"] or "", mark)} for message in messages]


def _parts(content: str, mark: str) -> list[Message]:
    parts: list[Message] = []
    for number, text in enumerate(content.split(mark)):
        parts += [{"type": "image"}] if number else []
        parts += [{"type": "text", "text": text}] if text else []
    return parts or [{"type": "text", "text": ""}]


def _with_text_arguments(messages: Sequence[Message]) -> list[Message]:
    """The arguments of calls as text only."""
    return [_with_text_of(message) if "tool_calls" in message else message for message in messages]


def _with_text_of(message: Message) -> Message:
    functions = [call["function"] for call in message["tool_calls"]]
    texts = [function | {"arguments": str(function["arguments"])} for function in functions]
    calls = zip(message["tool_calls"], texts, strict=True)
    return message | {"tool_calls": [call | {"function": function} for call, function in calls]}


def _with_said_thoughts(messages: Sequence[Message]) -> list[Message]:
    """What was said beside a call as the end of the thought before it: gpt-oss takes one of the two."""
    return [
        message | dict.fromkeys(REASONING, f"{message['thinking']}\n\n{message['content']}") | {"content": ""}
        if message.get("tool_calls") and message.get("thinking") and message["content"]
        else message
        for message in messages
    ]


def _without_null(messages: Sequence[Message]) -> list[Message]:
    return [message | {"content": message["content"] or ""} for message in messages]


def _in_user_turns(messages: Sequence[Message]) -> list[Message]:
    """What the system says as the user's, for templates that know no system; where calls are written out, also what
    tools return. Neighbouring messages of the user become one, because such templates want roles to alternate."""
    knows_calls = any("tool_calls" in message for message in messages)
    turned = [_turned(message, knows_calls) for message in messages]
    shown: list[Message] = []
    for role, turn in groupby(turned, key=lambda message: str(message["role"])):
        first, *others = turn
        if role == "user":
            first = first | {"content": "\n\n".join(message["content"] for message in (first, *others))}
            others = []
        shown += [first, *others]
    return shown


def _turned(message: Message, knows_calls: bool) -> Message:
    """The message as the user's, if it is the system's or an unknown tool's."""
    if message["role"] in ("system", "developer"):
        return message | {"role": "user"}
    if message["role"] == "tool" and not knows_calls:
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return message
