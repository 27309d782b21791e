"""Reads tool calls written as JSON objects one after another, with or without a list around them."""

from __future__ import annotations

from server.parsing.call_object import CallObject
from server.parsing.parts import CallWriter, Content, Part

SEPARATORS = frozenset(" \t\r\n,;[")


class CallList:
    """Parses calls until text comes that belongs to no call. rest: that text and what follows it; None before.

    max_calls: reading ends after so many; known_names: a call of another name is no call, None allows any."""

    def __init__(self, writer: CallWriter, max_calls: int | None, known_names: frozenset[str] | None = None) -> None:
        self._writer = writer
        self._max_calls = max_calls
        self._known_names = known_names
        self._object: CallObject | None = None
        self.rest: str | None = None

    @property
    def is_full(self) -> bool:
        return self._object is None and self._max_calls is not None and self._writer.num_calls >= self._max_calls

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for position, character in enumerate(text):
            if self.rest is not None or self.is_full:
                self.rest = (self.rest or "") + text[position:]
                break
            parts += self._push(character)
        return parts

    def flush(self) -> list[Part]:
        """The text of a call that was cut off before its name was known, as content."""
        cut, self._object = self._object, None
        return [Content(cut.raw)] if cut is not None and not cut.is_started else []

    def _push(self, character: str) -> list[Part]:
        if self._object is None:
            if character != "{":
                if character not in SEPARATORS:
                    self.rest = "" if character == "]" else character
                return []
            self._object = CallObject(self._writer, self._known_names)
        call = self._object
        parts = call.push(character)
        if call.is_broken and not call.is_started:
            self._object, self.rest = None, call.raw
        elif call.is_done:
            self._object = None
        return parts
