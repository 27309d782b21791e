"""Text that comes in pieces, for readers that are generators: a `yield` waits until more of it has come.

Invariant: what a reader finds depends on the text and not on how it was cut into pieces, because it waits wherever more
text could change what it finds.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Wait = Generator[None, None, T]

# White space, and the place between a mark and a list's bracket, where models write it or not.
BETWEEN_WORDS = re.compile(r"\s+|(?<=[>\]])(?=\[)")


@lru_cache(maxsize=1024)
def words_of(text: str) -> tuple[str, ...]:
    """The parts of fixed text between which a model may write white space."""
    return tuple(filter(None, BETWEEN_WORDS.split(text)))


def overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` may be the beginning of `mark`: fewer than all of it, and the most."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class Tape:
    """at: where reading goes on in `text`; is_ended: no more text will come; is_cut: though the reply was to go on;
    lacks_text: a reader wanted more then."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.is_ended = self.is_cut = self.lacks_text = False

    @property
    def is_read(self) -> bool:
        return self.at >= len(self.text)

    @property
    def is_cut_here(self) -> bool:
        """Whether a reader wanted more text than a reply has that was cut."""
        return self.is_cut and self.lacks_text

    def drop(self) -> None:
        """Forget what has been read; no place in it may be gone back to."""
        self.text, self.at = self.text[self.at :], 0

    def wait(self) -> Wait[bool]:
        """Wait for more text. False where none will come."""
        if self.is_ended:
            self.lacks_text = True
            return False
        yield
        return True

    def next(self) -> Wait[str]:
        """The next character, which is not passed; "" at the end."""
        while self.is_read and (yield from self.wait()):
            pass
        return self.text[self.at : self.at + 1]

    def skip(self, characters: str) -> Wait[str]:
        """Pass these characters. The next one that is another; "" at the end."""
        while (letter := (yield from self.next())) and letter in characters:
            self.at += 1
        return letter

    def skip_space(self) -> Wait[str]:
        """Pass white space. The next character; "" at the end."""
        while (letter := (yield from self.next())).isspace():
            self.at += 1
        return letter

    def takes(self, fixed: str) -> Wait[bool]:
        """Whether fixed text comes next, with any white space before and in it. It is passed then, and nothing else."""
        begin = self.at
        for word in words_of(fixed):
            yield from self.skip_space()
            while word.startswith(self.text[self.at :]) and len(self.text) - self.at < len(word):
                if not (yield from self.wait()):
                    break
            if not self.text.startswith(word, self.at):
                self.at = begin
                return False
            self.at += len(word)
        return True

    def takes_any(self, marks: Sequence[str]) -> Wait[bool]:
        """Whether one of these marks comes next, which is passed as `takes` does."""
        for mark in marks:
            if (yield from self.takes(mark)):
                return True
        return False

    def matching(self, pattern: re.Pattern[str]) -> Wait[str]:
        """The longest text at this place that matches a pattern which may match longer text as more comes; passed."""
        while True:
            found = pattern.match(self.text, self.at)
            end = self.at if found is None else found.end()
            if end < len(self.text) or not (yield from self.wait()):
                break
        text, self.at = self.text[self.at : end], end
        return text

    def until(self, mark: str, most: int) -> Wait[str | None]:
        """The text before `mark`, which is passed with it. None where it does not come within `most` characters."""
        while True:
            place = self.text.find(mark, self.at, self.at + most + len(mark))
            if place >= 0:
                break
            if len(self.text) - self.at > most + len(mark) or not (yield from self.wait()):
                return None
        text, self.at = self.text[self.at : place], place + len(mark)
        return text
