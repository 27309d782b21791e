"""Reads JSON off a tape: whole values as they are written, and objects that spell a call, passed on as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from pydantic_core import from_json, to_json

from server.parsing.tape import Tape, Wait

NAME_KEYS = frozenset({"name", "tool_name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
OTHER_KEYS = frozenset({"type", "id", "tool_call_id"})  # of a call in OpenAI's form, beside "function"
STRING = re.compile(r'"(?:[^"\\]|\\.|\\\Z)*', re.DOTALL)  # without its last quote
SCALAR = re.compile(r"[\w.+-]+")


class Nesting:
    """Tells where a JSON object or list ends, though brackets and marks may stand in its strings."""

    def __init__(self) -> None:
        self._depth = 0
        self.is_in_string = False
        self.is_escaped = False

    def end_of(self, text: str, at: int) -> int | None:
        """The place after the value's last bracket, None where it goes on after `text`, which is read from `at` on."""
        for place in range(at, len(text)):
            letter = text[place]
            if self.is_escaped:
                self.is_escaped = False
            elif self.is_in_string:
                self.is_escaped = letter == "\\"
                self.is_in_string = letter != '"'
            elif letter == '"':
                self.is_in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


def read_brackets(tape: Tape, show: Callable[[str], None]) -> Wait[bool]:
    """Pass an object or a list on as it comes. False where the text ends within it."""
    nesting = Nesting()
    while True:
        end = nesting.end_of(tape.text, tape.at)
        show(tape.text[tape.at : end])
        tape.at = len(tape.text) if end is None else end
        if end is not None:
            return True
        if not (yield from tape.wait()):
            return False


def read_value(tape: Tape) -> Wait[str | None]:
    """The text of the value that comes next; None where there is none, or it does not end."""
    letter = yield from tape.skip_space()
    if letter and letter in "{[":
        pieces: list[str] = []
        is_whole = yield from read_brackets(tape, pieces.append)
        return "".join(pieces) if is_whole else None
    if letter == '"':
        text = yield from tape.matching(STRING)
        if not (yield from tape.takes('"')):
            return None
        return text + '"'
    return (yield from tape.matching(SCALAR)) or None


def read_arguments(tape: Tape, show: Callable[[str], None]) -> Wait[bool]:
    """Pass a call's arguments on as JSON text: an object as it comes, and what a string spells. Where they are null or
    nothing they are {}. False where the text ends within them."""
    if (yield from tape.skip_space()) == "{":
        return (yield from read_brackets(tape, show))
    begin = tape.at
    text = yield from read_value(tape)
    if text is None:
        tape.at = begin
        return False
    show(spelled_arguments(text))
    return True


def spelled_arguments(text: str) -> str:
    """The arguments that a JSON value other than an object stands for: what a string spells, and {} for nothing."""
    value = loaded(text)
    text = value if isinstance(value, str) else text
    return "{}" if text.strip() in ("", "null") else text


def object_json(text: str) -> bytes:
    """The JSON object that `text` spells, as far as it is complete where it was cut off; {} where it is none."""
    try:
        value = from_json(text, allow_partial=True)
    except ValueError:
        value = None
    return to_json(value if isinstance(value, dict) else {})


class CallObject:
    """Reads {"name": ..., "arguments": {...}}, or OpenAI's {"type": "function", "function": {...}}, in any order.

    on_name: called once with the name, before its arguments; it says whether a function may be called so. show: gets
    the arguments' text. may_have_more: other members are passed over, and not a sign that it is no call.
    """

    def __init__(
        self, tape: Tape, on_name: Callable[[str], bool], show: Callable[[str], None], may_have_more: bool = True
    ) -> None:
        self._tape = tape
        self._on_name = on_name
        self._show = show
        self._may_have_more = may_have_more
        self._early: list[str] | None = None  # arguments that came before the name
        self._has_arguments = False
        self.is_named = False

    def read(self) -> Wait[bool]:
        """Whether it was a call from one bracket to the other. The tape stands at its opening bracket."""
        if not (yield from self._members()):
            return False
        if not self.is_named:
            return False
        if not self._has_arguments:
            self._show("".join(self._early or ["{}"]))
        return True

    def _members(self) -> Wait[bool]:
        tape = self._tape
        yield from tape.takes("{")
        while not (yield from tape.takes("}")):
            key = loaded((yield from read_value(tape)) or "")
            if not isinstance(key, str) or not (yield from tape.takes(":")):
                return False
            if not (yield from self._member(key)):
                return False
            yield from tape.takes(",")
        return True

    def _member(self, key: str) -> Wait[bool]:
        tape = self._tape
        if key in ARGUMENT_KEYS and not self._has_arguments:
            if self.is_named:
                self._has_arguments = True
                return (yield from read_arguments(tape, self._show))
            self._early = []
            return (yield from read_arguments(tape, self._early.append))
        if key == "function" and (yield from tape.skip_space()) == "{":
            return (yield from self._members())
        is_name = key in NAME_KEYS or key == "function"
        if not (is_name or self._may_have_more or key in OTHER_KEYS):
            return False
        value = yield from read_value(tape)
        if is_name and value is not None:
            name = loaded(value)
            self.is_named = isinstance(name, str) and not self.is_named and self._on_name(name)
            return self.is_named
        return value is not None


def loaded(text: str) -> object:
    """The value of JSON text. Text that is none is its own value, though it is no string of a call."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return 0
