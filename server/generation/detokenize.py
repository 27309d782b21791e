"""Turns token ids into text, a few at a time. Pure: knows nothing of requests, only a `decode` function.

Invariant: the pieces, joined, are what decoding everything at once gives, and no piece ends inside a character. Text
that later tokens may still change is held back until it is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from server.parsing.string_search import SearchTree

Decode = Callable[[Sequence[int]], str]

REPLACEMENT = "\ufffd"  # what a decoder shows for bytes that are not (yet) a character
CONTEXT = 4  # tokens before a piece that are decoded with it, because they decide its first space
SHRINK_AT = 24  # window length, in tokens, at which those whose text is final are dropped
GIVE_UP_AT = 256  # window length, in tokens, at which broken characters are shown as they are


class IncrementalText:
    """The text of one choice. context: the tokens before it (the prompt's), which decide whether it begins with a
    space."""

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context[-CONTEXT:])
        self._text = decode(self._window) if self._window else ""
        if self._text.endswith(REPLACEMENT):
            self._window, self._text = [], ""
        self._num_shown = len(self._text)

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens make final, perhaps none."""
        self._window.extend(token_ids)
        self._text = self._decode(self._window)
        piece = self._show(len(self._text.rstrip(REPLACEMENT)))
        if len(self._window) >= GIVE_UP_AT:
            piece += self._show(len(self._text) - 1)
        if len(self._window) >= SHRINK_AT:
            self._shrink()
        return piece

    def flush(self) -> str:
        """What is still held back, at the end."""
        return self._show(len(self._text))

    def _show(self, end: int) -> str:
        piece = self._text[self._num_shown : end]
        self._num_shown = max(self._num_shown, end)
        return piece

    def _shrink(self) -> None:
        """Keep the fewest last tokens that still decode to the held-back text with whole characters before it."""
        held = self._text[self._num_shown :]
        for size in (CONTEXT, 2 * CONTEXT, 4 * CONTEXT):
            window = self._window[-size:]
            text = self._decode(window)
            is_settled = not text.startswith(REPLACEMENT) or len(self._window) >= GIVE_UP_AT
            if is_settled and text.endswith(held) and len(text) > len(held):
                self._window, self._text, self._num_shown = window, text, len(text) - len(held)
                return


class StopStrings:
    """Cuts text before the stop string that is complete first, also where it spans pieces; with `keeps`, after it."""

    def __init__(self, stops: SearchTree, keeps: bool = False) -> None:
        self._stops = stops
        self._keeps = keeps
        self._state = 0
        self._held = ""  # what may be the beginning of a stop string
        self.found: str | None = None
        self.num_withheld = 0  # characters at the end that were not given out: held back, or cut off

    def push(self, text: str) -> tuple[str, bool]:
        """The text that can no longer be part of a stop string, and whether one was found."""
        stops, state, num_held = self._stops, self._state, len(self._held)
        whole = self._held + text
        for num_read, letter in enumerate(text, start=num_held + 1):
            state = stops.step(state, letter)
            if stops.match_of[state]:
                self._held = ""
                begin = num_read - stops.match_of[state]
                self.found = whole[begin:num_read]
                end = num_read if self._keeps else begin
                self.num_withheld = len(whole) - end
                return whole[:end], True
        self._state, self.num_withheld = state, stops.length_of[state]
        num_settled = len(whole) - self.num_withheld
        self._held = whole[num_settled:]
        return whole[:num_settled], False

    def flush(self) -> str:
        """What is held back, where no stop string goes on: at the end, or before what is not part of the text."""
        held, self._held = self._held, ""
        if self.found is None:
            self._state = self.num_withheld = 0
        return held
