"""Parsers for replies that a grammar forces to be a list of {"name", "parameters"}, or one function's arguments."""

from __future__ import annotations

from server.parsing.call_list import CallList
from server.parsing.parts import CallWriter, Part


class RequiredParser:
    """Reads the whole reply as a list of calls."""

    is_reasoning = False
    is_done = False

    def __init__(self, writer: CallWriter) -> None:
        self._calls = CallList(writer, None)

    def push(self, text: str) -> list[Part]:
        return self._calls.push(text)

    def flush(self) -> list[Part]:
        return self._calls.flush()


class NamedParser:
    """Reads the whole reply as the arguments of a call of `name`."""

    is_reasoning = False
    is_done = False

    def __init__(self, writer: CallWriter, name: str) -> None:
        self._writer = writer
        self._name = name

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        if not self._writer.num_calls:
            parts.append(self._writer.start(self._name))
        return [*parts, self._writer.arguments(text)]

    def flush(self) -> list[Part]:
        return [] if self._writer.num_calls else [self._writer.start(self._name)]
