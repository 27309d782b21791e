"""The formats in which model families write tool calls, and a parser for each.

hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call> (Hermes, Qwen 2.5, Qwen 3).
llama3: the whole reply is {"name": ..., "parameters": {...}}, several separated by ";" (Llama 3.1 and later).
mistral: [TOOL_CALLS], then a list of such objects, or name[ARGS]{...} (Mistral, depending on the tokenizer's version).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from server.parsing.call_list import CallList
from server.parsing.call_object import JsonScanner
from server.parsing.marks import MarkFinder, SpaceHolder
from server.parsing.parts import CallWriter, Content, Parser, Part

Family = Literal["hermes", "llama3", "mistral"]

PYTHON_TAG = "<|python_tag|>"
MISTRAL_MARK = "[TOOL_CALLS]"
MISTRAL_ARGUMENTS = "[ARGS]"
MISTRAL_ID = "[CALL_ID]"


def family_of(template_text: str) -> Family:
    """The family whose format a chat template uses; hermes where it uses none of the others."""
    if MISTRAL_MARK in template_text:
        return "mistral"
    if PYTHON_TAG in template_text or ("ipython" in template_text and '"parameters"' in template_text):
        return "llama3"
    return "hermes"


def call_parser(family: Family, names: frozenset[str], make_id: Callable[[], str], max_calls: int | None) -> Parser:
    """A parser for one reply of a model of this family. names: the tools'; max_calls: None for any number."""
    writer = CallWriter(make_id)
    if family == "llama3":
        return LlamaParser(writer, max_calls, names)
    if family == "mistral":
        return MistralParser(writer, max_calls)
    return HermesParser(writer, max_calls)


class HermesParser:
    is_reasoning = False

    def __init__(self, writer: CallWriter, max_calls: int | None) -> None:
        self._writer = writer
        self._max_calls = max_calls
        self._open, self._close = MarkFinder("<tool_call>"), MarkFinder("</tool_call>")
        self._spaces = SpaceHolder()
        self._call: CallList | None = None

    @property
    def is_done(self) -> bool:
        return self._max_calls is not None and self._writer.num_calls >= self._max_calls and self._call is None

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        rest: str | None = text
        while rest is not None and not self.is_done:
            if self._call is None:
                said, rest = self._open.push(rest)
                parts.append(Content(self._spaces.push(said)))
                if rest is not None:
                    self._call = CallList(self._writer, None)
                    self._spaces.flush()
            else:
                inside, rest = self._close.push(rest)
                parts += self._call.push(inside)
                if rest is not None:
                    parts += self._end_call(self._close.mark)
        return parts

    def flush(self) -> list[Part]:
        if self._call is not None:
            parts = self._call.push(self._close.flush())
            return parts + self._end_call("")
        return [] if self.is_done else [Content(self._spaces.flush() + self._open.flush())]

    def _end_call(self, mark: str) -> list[Part]:
        """End the call. Text between the marks that turned out not to be a call is shown as it was written."""
        assert self._call is not None
        call, self._call = self._call, None
        lost = call.flush()
        broken = "".join(part.text for part in lost if isinstance(part, Content)) + (call.rest or "").rstrip()
        return [Content(f"{self._open.mark}{broken}{mark}")] if broken else []


class LlamaParser:
    is_reasoning = False

    def __init__(self, writer: CallWriter, max_calls: int | None, names: frozenset[str]) -> None:
        self._calls = CallList(writer, max_calls, names)
        self._opening: str | None = ""
        self._is_plain = False

    @property
    def is_done(self) -> bool:
        return self._calls.is_full

    def push(self, text: str) -> list[Part]:
        if self._opening is not None:
            self._opening += text
            shown = self._opening.lstrip()
            if PYTHON_TAG.startswith(shown):
                return []
            shown = shown.removeprefix(PYTHON_TAG)
            self._is_plain = not shown.lstrip().startswith("{")
            text, self._opening = (self._opening if self._is_plain else shown), None
        if self._is_plain:
            return [Content(text)]
        parts = self._calls.push(text)
        if self._calls.rest and not self.is_done:
            self._is_plain = True
            parts.append(Content(self._calls.rest))
        return parts

    def flush(self) -> list[Part]:
        opening = [Content(self._opening)] if self._opening else []
        return [*opening, *self._calls.flush()]


class MistralParser:
    is_reasoning = False

    def __init__(self, writer: CallWriter, max_calls: int | None) -> None:
        self._writer = writer
        self._max_calls = max_calls
        self._mark = MarkFinder(MISTRAL_MARK)
        self._spaces = SpaceHolder()
        self._reader: CallList | _NamedCall | None = None
        self._opening = ""

    @property
    def is_done(self) -> bool:
        is_between = self._reader is None if not isinstance(self._reader, CallList) else self._reader.is_full
        return self._max_calls is not None and self._writer.num_calls >= self._max_calls and is_between

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        rest: str | None = text
        while rest is not None and not self.is_done:
            if self._reader is None:
                said, rest = self._mark.push(rest)
                parts.append(Content(self._spaces.push(said)))
                if rest is not None:
                    self._spaces.flush()
                    self._reader, rest = _NamedCall(self._writer), rest
            elif isinstance(self._reader, _NamedCall) and self._reader.is_list:
                calls = CallList(self._writer, self._max_calls)
                rest, self._reader = self._reader.head + rest, calls
            else:
                parts += self._reader.push(rest)
                is_list = isinstance(self._reader, _NamedCall) and self._reader.is_list
                rest = "" if is_list else self._reader.rest
                if rest is not None and not is_list:
                    self._reader = None
        return parts

    def flush(self) -> list[Part]:
        if self._reader is not None:
            return self._reader.flush()
        return [] if self.is_done else [Content(self._spaces.flush() + self._mark.flush())]


class _NamedCall:
    """Parses name[ARGS]{...}, with [CALL_ID] and an id before [ARGS] or without. is_list: what follows [TOOL_CALLS] is
    a list of objects instead, which begins with `head`."""

    def __init__(self, writer: CallWriter) -> None:
        self._writer = writer
        self._scanner: JsonScanner | None = None
        self.head = ""
        self.is_list = False
        self.rest: str | None = None

    def push(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for position, character in enumerate(text):
            if self._scanner is not None:
                self._scanner.push(character)
                parts.append(self._writer.arguments(character))
                if self._scanner.depth == 0:
                    self.rest = text[position + 1 :]
                    return parts
            elif character == "{" and self.head.lstrip()[:1] != "[":
                name = self.head.removesuffix(MISTRAL_ARGUMENTS).partition(MISTRAL_ID)[0].strip()
                self._scanner = JsonScanner()
                self._scanner.push(character)
                parts += [self._writer.start(name), self._writer.arguments(character)]
            else:
                self.head += character
                if self.head.lstrip()[:1] == "[":
                    self.is_list = True
                    self.head += text[position + 1 :]
                    return parts
        return parts

    def flush(self) -> list[Part]:
        return [Content(MISTRAL_MARK + self.head)] if self._scanner is None and self.head else []
