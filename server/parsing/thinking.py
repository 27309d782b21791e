"""Separates a model's reasoning, between <think> and </think>, from the rest of its reply."""

from __future__ import annotations

from server.parsing.marks import MarkFinder, SpaceHolder
from server.parsing.parts import Parser, Part, Reasoning

OPEN, CLOSE = "<think>", "</think>"


class ThinkingParser:
    """Reads the reasoning itself and passes the text after it to `rest`. starts_inside: the prompt ends with <think>.

    White space beside the marks is dropped on both sides.
    """

    def __init__(self, rest: Parser, starts_inside: bool) -> None:
        self._rest = rest
        self._close = MarkFinder(CLOSE)
        self._spaces = SpaceHolder()
        self._opening: str | None = None if starts_inside else ""  # the reply's first text, while it may become <think>
        self._is_at_start = True  # only white space has come since the last mark
        self.is_reasoning = starts_inside

    @property
    def is_done(self) -> bool:
        return self._rest.is_done

    def push(self, text: str) -> list[Part]:
        if self._opening is not None:
            text = self._open(text)
        parts: list[Part] = []
        if self.is_reasoning:
            thought, after = self._close.push(text)
            parts += self._think(thought)
            if after is None:
                return parts
            self.is_reasoning, self._is_at_start, text = False, True, after
        return parts + self._say(text)

    def flush(self) -> list[Part]:
        parts: list[Part] = []
        if self._opening:
            parts += self._rest.push(self._opening)
        if self.is_reasoning:
            parts += self._think(self._close.flush())
        return parts + self._rest.flush()

    def _open(self, text: str) -> str:
        """The text after <think>, or all text where the reply does not begin with it; "" while that is undecided."""
        assert self._opening is not None
        text = self._opening + text
        shown = text.lstrip()
        if shown.startswith(OPEN):
            self._opening, self.is_reasoning = None, True
            return shown[len(OPEN) :]
        if OPEN.startswith(shown):
            self._opening = text
            return ""
        self._opening, self._is_at_start = None, False
        return text

    def _think(self, text: str) -> list[Part]:
        if self._is_at_start:
            text = text.lstrip()
            self._is_at_start = not text
        text = self._spaces.push(text)
        return [Reasoning(text)] if text else []

    def _say(self, text: str) -> list[Part]:
        if self._is_at_start and self._opening is None:
            text = text.lstrip()
            self._is_at_start = not text
        return self._rest.push(text) if text else []


def thinks(template_text: str) -> bool:
    """Whether a model with this chat template writes its reasoning between these marks."""
    return CLOSE in template_text
