"""Finding any of some strings in text that comes in pieces: each character is looked at once (Aho and Corasick, 1975).

Knows nothing of what the strings are for.
"""

from __future__ import annotations

from collections.abc import Sequence


class SearchTree:
    """The beginnings of the wanted strings, a state each; state 0 is the empty one. It does not change.

    length_of, match_of: by state, the characters of its beginning, and those of the longest wanted string that it
    ends in, 0 for none.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        assert all(wanted), wanted
        self._next: list[dict[str, int]] = [{}]
        self.length_of, self.match_of = [0], [0]
        for string in wanted:
            self._add(string)
        self._shorter = [0] * len(self._next)  # the longest other state that a state ends in
        for state in sorted(range(len(self._next)), key=self.length_of.__getitem__):
            for letter, child in self._next[state].items():
                self._shorter[child] = self.step(self._shorter[state], letter) if state else 0
                self.match_of[child] = max(self.match_of[child], self.match_of[self._shorter[child]])

    @property
    def is_empty(self) -> bool:
        """Nothing is wanted."""
        return len(self._next) == 1

    def step(self, state: int, letter: str) -> int:
        """The state after one more letter: the longest beginning that the text ends in."""
        while letter not in self._next[state]:
            if not state:
                return 0
            state = self._shorter[state]
        return self._next[state][letter]

    def _add(self, string: str) -> None:
        state = 0
        for letter in string:
            if letter not in self._next[state]:
                self._next[state][letter] = len(self._next)
                self._next.append({})
                self.length_of.append(self.length_of[state] + 1)
                self.match_of.append(0)
            state = self._next[state][letter]
        self.match_of[state] = len(string)
