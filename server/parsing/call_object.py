"""Parses one tool call written as a JSON object, {"name": ..., "arguments": {...}}, character by character.

As soon as the name is known, the arguments' text is passed on as it comes, unchanged.
"""

from __future__ import annotations

import json

from server.parsing.parts import CallWriter, Part

NAME_KEYS = frozenset({"name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})


class JsonScanner:
    """Tracks strings and nesting in JSON text. depth: how many brackets are open after the last character."""

    def __init__(self) -> None:
        self.depth = 0
        self.is_in_string = False
        self._is_escaped = False

    def push(self, character: str) -> bool:
        """Read one character. True where it is structure or white space, not part of a string."""
        if self.is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self.is_in_string = False
            return False
        if character == '"':
            self.is_in_string = True
            return False
        if character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1
        return True


class ArgumentText:
    """The text of a call's arguments: the value without surrounding white space; of a JSON string, what it spells."""

    def __init__(self) -> None:
        self._held = ""
        self._is_string: bool | None = None

    def push(self, character: str) -> str:
        self._held += character
        if self._is_string is None and not character.isspace():
            self._is_string = character == '"'
            self._held = character
        if self._is_string is not False or character.isspace():
            return ""
        text, self._held = self._held, ""
        return text

    def end(self) -> str:
        """The text of a JSON string, which is held back until here; as it is where it cannot be decoded."""
        if not self._is_string:
            return ""
        try:
            return str(json.loads(self._held))
        except ValueError:
            return self._held


class CallObject:
    """raw: all text read. is_started: the name is known; is_done: the object is closed; is_broken: it is not a call, so
    that `raw` is to be shown as text."""

    def __init__(self, writer: CallWriter, known_names: frozenset[str] | None = None) -> None:
        self._writer = writer
        self._known_names = known_names
        self._scanner = JsonScanner()
        self._key: str | None = None
        self._word = ""  # the key or the name being read
        self._arguments = ArgumentText()
        self._early = ""  # arguments that came before the name
        self.raw = ""
        self.is_started = self.is_done = self.is_broken = False

    def push(self, character: str) -> list[Part]:
        """The parts that one more character makes. The first character must be the object's opening bracket."""
        self.raw += character
        is_structure = self._scanner.push(character)
        depth = self._scanner.depth
        if self.raw == "{":
            return []
        if is_structure and depth == 1 and character == ":" and self._key is None:
            return self._begin_value()
        if is_structure and (depth == 0 or (depth == 1 and character == ",")):
            parts = self._end_value()
            if depth == 0:
                self.is_done = True
                self.is_broken = self.is_broken or not self.is_started
            return parts
        if self._key in ARGUMENT_KEYS:
            return self._show(self._arguments.push(character))
        if self._key is None or self._key in NAME_KEYS:
            self._word += character
        return []

    def _begin_value(self) -> list[Part]:
        key = _string(self._word)
        self.is_broken = self.is_broken or key is None
        self._key, self._word = key or "", ""
        return []

    def _end_value(self) -> list[Part]:
        parts: list[Part] = []
        if self._key in ARGUMENT_KEYS:
            parts = self._show(self._arguments.end())
        elif self._key in NAME_KEYS and not self.is_started:
            parts = self._start(_string(self._word))
        self._key, self._word = None, ""
        return parts

    def _start(self, name: str | None) -> list[Part]:
        if not name or (self._known_names is not None and name not in self._known_names):
            self.is_broken = True
            return []
        self.is_started = True
        start = self._writer.start(name)
        return [start, *self._show(self._early)]

    def _show(self, text: str) -> list[Part]:
        if not text:
            return []
        if self.is_started:
            return [self._writer.arguments(text)]
        self._early += text
        return []


def _string(word: str) -> str | None:
    try:
        value = json.loads(word)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
