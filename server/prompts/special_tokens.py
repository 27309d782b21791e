"""Breaks up the names of special tokens in what clients write, so that it is encoded as text and not as those tokens.

Owns the mark that is put into names; knows nothing of templates or of token ids. Invariant: a prompt has a special
token's whole name only where the chat template wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from server.http.errors import invalid

MARKS = tuple(map(chr, range(0xFDD0, 0xFDF0)))  # noncharacters, which Unicode reserves for programs' internal use


@dataclass(frozen=True, slots=True)
class MarkedText:
    """Text with `mark` wherever a name was broken up; "" if none was."""

    text: str
    mark: str = ""

    @property
    def plain(self) -> str:
        """The text without marks, as the client wrote it."""
        return self.text.replace(self.mark, "") if self.mark else self.text


class SpecialTokens:
    """names: how text spells the special tokens."""

    def __init__(self, names: Iterable[str]) -> None:
        known = frozenset(filter(None, names))
        self._names = known
        self._pattern = re.compile(_longest(known)) if known else None
        beginnings = (name[:size] for name in known for size in range(1, len(name)))
        self._beginnings = frozenset(each for each in beginnings if not each.isalnum())  # letters alone are too common
        self._longest_beginning = max(map(len, self._beginnings), default=0)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def are_in(self, text: str) -> bool:
        """Whether the text has a special token's name."""
        return self._pattern is not None and self._pattern.search(text) is not None

    def mark_for(self, values: Any) -> str:
        """A mark that occurs in no string of `values`, at any depth; "" where no name needs to be broken up.

        Raises ApiError where the strings contain all marks.
        """
        texts = list(_texts_in(values))
        if not any(self._marked(text, MARKS[0]) != text for text in texts):
            return ""
        return unused_mark(texts)

    def broken_up(self, value: Any, mark: str) -> Any:
        """`value` with `mark` inside every name in its strings, and after a string's end that is a name's beginning.

        Raises ApiError for values that are nested too deeply.
        """
        if not mark:
            return value
        try:
            return self._broken_up(value, mark)
        except RecursionError:
            raise invalid("The messages are nested too deeply.", "messages") from None

    def _broken_up(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._marked(value, mark)
        if isinstance(value, dict):
            return {self._broken_up(name, mark): self._broken_up(item, mark) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._broken_up(item, mark) for item in value]
        return value

    def pieces(self, marked: MarkedText) -> Iterator[tuple[str, bool]]:
        """The text in pieces to encode one by one, each with whether names in it are encoded as special tokens.

        Text with a mark is a piece of its own, from one special token to the next: in it all names stay text.
        """
        text, mark = marked.text, marked.mark
        written = position = 0
        for start, end in [*self._whole_names(text, mark), (len(text), len(text))]:
            between = text[position:start]
            if mark and mark in between:
                if written < position:
                    yield text[written:position], True
                yield between.replace(mark, ""), False
                written = start
            position = end
        if written < len(text):
            yield text[written:], True

    def _whole_names(self, text: str, mark: str) -> list[tuple[int, int]]:
        """Start and end of each name that is not broken up. A name of one letter is broken up by a mark after it."""
        if not mark or self._pattern is None:
            return []
        return [found.span() for found in self._pattern.finditer(text) if not text.startswith(mark, found.end())]

    def _marked(self, text: str, mark: str) -> str:
        if self._pattern is None:
            return text
        text = self._pattern.sub(lambda found: found[0][0] + mark + found[0][1:], text)
        end = len(text.rstrip())
        sizes = range(1, min(self._longest_beginning, end) + 1)
        begins = any(text[end - size : end] in self._beginnings for size in sizes)
        return f"{text[:end]}{mark}{text[end:]}" if begins else text


def unused_mark(values: Any) -> str:
    """A mark that occurs in no string of `values`, at any depth. Raises ApiError where they contain all marks."""
    texts = list(_texts_in(values))
    mark = next((mark for mark in MARKS if not any(mark in text for text in texts)), None)
    if mark is None:
        raise invalid("The messages have every noncharacter there is; leave one out.", "messages")
    return mark


def _texts_in(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            left += value


def _longest(names: Iterable[str]) -> str:
    """A pattern that matches the longest name. It is a prefix tree, so that its time is bounded by a name's length."""
    groups: dict[str, list[str]] = {}
    for name in names:
        if name:
            groups.setdefault(name[0], []).append(name[1:])
    branches = []
    for letter, rests in sorted(groups.items()):
        rest = _longest(rests)
        is_end = "" in rests
        branches.append(re.escape(letter) + (f"(?:{rest})?" if is_end and rest else rest))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
