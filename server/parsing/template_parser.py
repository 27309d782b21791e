"""Reads replies by the response template that a tokenizer brings, or a file: with transformers' parser.

Arguments come whole, once a call has ended, and no grammar can be made of such a template. What the library cannot is
done here: marks inside JSON strings, and calls that cannot be read, which are shown as they were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from decoding.errors import ConfigError
from server.parsing.json_text import Nesting
from server.parsing.parts import Part, Reasoning
from server.parsing.reply_format import ReplyFormat
from server.parsing.reply_parser import CallsWanted, ReplyParser
from server.parsing.spaces import SpaceHolder

THOUGHTS = frozenset({"thinking", "reasoning", "reasoning_content"})
CALLS = "tool_calls"


def load_response_template(spec: Any, place: str) -> Any:
    """transformers' compiled template. Raises ConfigError with the library's words, and the place where it stands."""
    from transformers.utils.chat_parsing.response_templates import load_response_template  # takes seconds

    try:
        return load_response_template(spec)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{place}: the response template cannot be used: {error}") from None


def opens_calls_as(template: Any, text: str) -> bool:
    """Whether the template's calls open with this text."""
    pattern = getattr(template.fields.get(CALLS), "open_re", None)
    return pattern is not None and pattern.search(text) is not None


class TemplateParser:
    """template: see `load_response_template`; prompt: where the template's marks before the reply are looked for."""

    def __init__(self, template: Any, wanted: CallsWanted, prompt: str) -> None:
        self._template = template
        self._wanted = wanted
        self._rest = ReplyParser(ReplyFormat(), wanted)  # of what is said
        self._thought = SpaceHolder()
        self._parts: list[Part] = []
        self._region = ""
        self._raw = ""  # the text since the last that was passed on
        self._nesting = Nesting()
        self._begin(prompt)

    @property
    def is_reasoning(self) -> bool:
        return self._region in THOUGHTS

    @property
    def is_done(self) -> bool:
        return self._rest.calls.is_full

    @property
    def num_held(self) -> int:
        return len(self._raw) + self._rest.num_held

    def push(self, text: str) -> list[Part]:
        for letter in text:
            self._raw += letter
            self._feed(self._escaped(letter))
        return self._take()

    def flush(self, is_cut: bool = False) -> list[Part]:
        try:
            _, events = self._parser.finalize()
            self._handle(events)
        except ValueError:  # of a call that does not end
            self._say("" if is_cut else self._raw)
        self._parts += self._rest.flush(is_cut)
        return self._take()

    def _begin(self, prompt: str) -> None:
        from transformers.utils.chat_parsing import ResponseParser

        tools: Any = [
            {"type": "function", "function": {"name": name, "parameters": schema}}
            for name, schema in self._wanted.schemas.items()
        ]
        self._parser = ResponseParser(self._template, prefix=prompt, tools=tools)
        self._region = ""
        for event in self._parser.initial_events:
            self._region = event["field"] if event["type"] != "region_close" else ""

    def _escaped(self, letter: str) -> str:
        """The letter, or its escape in a JSON string, where a mark would end the call."""
        is_plain = letter.isalnum() or letter in '"\\ ' or not "\x20" <= letter < "\ud800"
        return (
            letter
            if is_plain or not self._nesting.is_in_string or self._nesting.is_escaped
            else f"\\u{ord(letter):04x}"
        )

    def _feed(self, text: str) -> None:
        if self.is_done:
            return
        try:
            self._handle(self._parser.feed(text))
        except ValueError:  # a call that is none
            self._say(self._raw)
            self._begin("")

    def _handle(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            kind, field = event["type"], event["field"]
            if kind == "region_open":
                self._region, self._nesting = field, Nesting()
                self._thought.skip()
            elif kind == "region_chunk":
                self._chunk(field, event["text"])
            else:
                if field == CALLS:
                    self._call(event["value"])
                elif field in THOUGHTS:
                    self._rest.skip_space()
                self._region, self._nesting = "", Nesting()

    def _chunk(self, field: str, text: str) -> None:
        if field == CALLS:
            if self._template.fields[field].content == "json":
                self._nesting.end_of(text, 0)
        elif field in THOUGHTS:
            self._parts.append(Reasoning(self._thought.push(text)))
            self._raw = self._raw.partition(text)[2]
        elif field == "content":
            self._say(text)
            self._raw = self._raw.partition(text)[2]

    def _call(self, value: Any) -> None:
        """Make the parts of a call, or of several. What is none, or may not be made, is said as it was written."""
        for each in value if isinstance(value, list) else [value]:
            function = each.get("function", each) if isinstance(each, Mapping) else {}
            name, arguments = function.get("name"), function.get("arguments")
            if not isinstance(name, str) or not self._wanted.schemas:
                self._say(self._raw)
            elif not self.is_done:
                text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
                self._parts += self._rest.push_call(name, text or "{}")
        self._raw = ""

    def _say(self, text: str) -> None:
        self._parts += self._rest.push(text)
        self._raw = ""

    def _take(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts
