"""Finding marks (such as <tool_call>) in text that comes in pieces, also marks that span pieces."""

from __future__ import annotations


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of `mark`, `mark` itself left out."""
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
        """The text before the mark that is settled, and the text after it; None while it has not come."""
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
    """Holds back the white space at the end of text, to be dropped before a mark or let go with more text."""

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
