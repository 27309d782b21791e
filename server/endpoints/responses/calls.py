"""The item of one call, which grows as its arguments come, and the events about it.

A call is a function's, with JSON text, or a custom tool's, with free text.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from server.endpoints.responses.input_text import InputText
from server.parsing.parts import CallStart
from server.schemas.response_replies import CallItem
from server.schemas.response_tools import OfferedTools

Event = tuple[str, dict[str, Any]]  # its kind and its fields


class OpenCall:
    """A model may call what it was not offered: that is a function's call, by the name that it wrote."""

    def __init__(self, start: CallStart, offered: OfferedTools) -> None:
        found = offered.find(start.name)
        self._input = InputText() if found is not None and found.is_custom else None
        name = start.name if found is None else found.tool.name
        self.item: CallItem
        if self._input is None:
            self.item = {
                "id": new_id("fc"),
                "type": "function_call",
                "status": "in_progress",
                "call_id": start.id,
                "name": name,
                "arguments": "",
            }
        else:
            self.item = {
                "id": new_id("ctc"),
                "type": "custom_tool_call",
                "status": "in_progress",
                "call_id": start.id,
                "name": name,
                "input": "",
            }
        if found is not None and found.namespace:
            self.item["namespace"] = found.namespace

    def add(self, arguments: str) -> Iterator[Event]:
        """The next piece of the JSON text of the arguments."""
        yield from self._grow(arguments if self._input is None else self._input.push(arguments))

    def end(self) -> Iterator[Event]:
        if self._input is not None:
            yield from self._grow(self._input.flush())
        if self.item["type"] == "custom_tool_call":
            yield "custom_tool_call_input.done", {"input": self.item["input"]}
        else:
            fields = {"name": self.item["name"], "arguments": self.item["arguments"]}
            yield "function_call_arguments.done", fields

    def _grow(self, text: str) -> Iterator[Event]:
        if not text:
            return
        if self.item["type"] == "custom_tool_call":
            self.item["input"] += text
            yield "custom_tool_call_input.delta", {"delta": text}
        else:
            self.item["arguments"] += text
            yield "function_call_arguments.delta", {"delta": text}


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
