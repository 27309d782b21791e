"""Finding one string in text that comes in pieces: linear in the text, whatever both are (Knuth, Morris, Pratt)."""

from __future__ import annotations

from functools import lru_cache


class StringSearch:
    """num_matched: characters at the end of the text so far that are a beginning of `wanted`, the most there are."""

    def __init__(self, wanted: str) -> None:
        assert wanted
        self._wanted = wanted
        self._shorter = _shorter_matches(wanted)
        self.num_matched = 0

    def push(self, text: str) -> int | None:
        """Where the first match begins, counted from the beginning of `text` (negative: before it); None for none."""
        wanted, shorter, num = self._wanted, self._shorter, self.num_matched
        for position, letter in enumerate(text):
            while num and letter != wanted[num]:
                num = shorter[num]
            num += letter == wanted[num]
            if num == len(wanted):
                self.num_matched = 0
                return position + 1 - num
        self.num_matched = num
        return None


@lru_cache(256)
def _shorter_matches(wanted: str) -> list[int]:
    """For each length of a beginning of `wanted`: how long the longest shorter beginning is that it ends in."""
    shorter = [0, 0]
    num = 0
    for letter in wanted[1:]:
        while num and letter != wanted[num]:
            num = shorter[num]
        num += letter == wanted[num]
        shorter.append(num)
    return shorter
