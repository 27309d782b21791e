"""Finds any of several strings in text that comes in pieces, in one pass (the automaton of Aho and Corasick, 1975)."""

from __future__ import annotations

from collections.abc import Sequence


class SearchTree:
    """An immutable automaton with a state for each prefix of the wanted strings; state 0 is the empty prefix.

    length_of: the length of a state's prefix; match_of: that of the longest wanted string with which the prefix ends, 0
    for none. Both by state, in characters.
    """

    def __init__(self, wanted: Sequence[str]) -> None:
        assert all(wanted), wanted
        self._next: list[dict[str, int]] = [{}]
        self.length_of, self.match_of = [0], [0]
        for string in wanted:
            self._add(string)
        self._shorter = [0] * len(self._next)  # the state of the longest other prefix with which a state's prefix ends
        for state in sorted(range(len(self._next)), key=self.length_of.__getitem__):
            for letter, child in self._next[state].items():
                self._shorter[child] = self.step(self._shorter[state], letter) if state else 0
                self.match_of[child] = max(self.match_of[child], self.match_of[self._shorter[child]])

    @property
    def is_empty(self) -> bool:
        """Whether there are no strings to find."""
        return len(self._next) == 1

    def step(self, state: int, letter: str) -> int:
        """The state after one more letter: that of the longest prefix with which the text then ends."""
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
