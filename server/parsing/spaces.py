"""Holds back white space at the end of text, which is dropped where a mark follows."""

from __future__ import annotations


class SpaceHolder:
    """More text releases the white space before it. skip: drop the white space that comes next, too."""

    def __init__(self) -> None:
        self._held = ""
        self._skips = False

    @property
    def num_held(self) -> int:
        """In characters."""
        return len(self._held)

    def push(self, text: str) -> str:
        text = self._held + text
        if self._skips:
            text = text.lstrip()
            self._skips = not text
        settled = text.rstrip()
        self._held = text[len(settled) :]
        return settled

    def flush(self) -> str:
        held, self._held = self._held, ""
        return held

    def skip(self) -> None:
        self._held, self._skips = "", True
