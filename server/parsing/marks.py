"""Finds marks (such as <tool_call>) in text that comes in pieces, also where a mark spans pieces."""

from __future__ import annotations


def overlap(text: str, mark: str) -> int:
    """How many of the last characters of `text` may be the beginning of `mark`: fewer than all of it, and the most."""
    for size in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:size]):
            return size
    return 0


class MarkFinder:
    """Holds text back while it may still be the beginning of `mark`."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text before the mark, as far as it is final; and the text after the mark, None before it has come."""
        text = self._held + text
        before, mark, after = text.partition(self.mark)
        if mark:
            self._held = ""
            return before, after
        num_held = overlap(text, self.mark)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held


class SpaceHolder:
    """Holds back white space at the end of text: more text releases it, and before a mark the caller drops it."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        text = self._held + text
        settled = text.rstrip()
        self._held = text[len(settled) :]
        return settled

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held
