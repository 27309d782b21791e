"""Where a reply is in the text its caller predicted, through insertions, deletions and replacements.

Owns a pointer into the predicted tokens and what it has learned on the way: which replacements come again. Knows
nothing of trees, nor how far a prediction can be trusted. It follows the reply itself, drafted or not, so that one that
turns good again costs no draft to take up.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray
from decoding.kernels.numba_kernel import kernel
from decoding.stores.evidence import GUESSED, MATCHED_MORE, MATCHED_ONE, MATCHED_THREE, SEARCHED

MAX_EDIT = 12  # tokens of a replacement that is remembered
MAX_EDITS = 4  # replacements that begin with one token
PROVEN = 2  # tokens in a row that prove a place
ANYWHERE = 4  # tokens in a row that find a place however far away
WINDOW = 40  # tokens beyond the break in which fewer will do
GUESS_LEN = 8  # most tokens drafted from a place that is not proven

_REASON_OF_RUN = (GUESSED, MATCHED_ONE, MATCHED_ONE, *[MATCHED_THREE] * 4, MATCHED_MORE)  # of longer ones as well
_LONGEST_RUN = len(_REASON_OF_RUN) - 1  # that is told apart


@dataclass(frozen=True, slots=True)
class Place:
    """What comes next: `pending`, the rest of a replacement seen before, then the prediction from `position` on."""

    position: int
    pending: tuple[int, ...] = ()


@dataclass(slots=True)
class Edit:
    """`new` stood once where the prediction has `old`."""

    old: tuple[int, ...]
    new: tuple[int, ...]
    balance: int = 0  # times it came again, less times it did not


@dataclass(slots=True)
class _Break:
    """A mismatch: at `position` of the prediction, after `num_reply` tokens of the reply."""

    position: int
    num_reply: int


class Prediction:
    """Follows one reply. tokens: int32 [m], the predicted ones.

    num_found: tokens of the prediction that the reply was found to contain, in runs of PROVEN or more, each once.
    """

    def __init__(self, tokens: IntArray) -> None:
        self._tokens = tokens
        self._ids = array("i", tokens.tobytes())  # ints when read, four bytes each while kept
        self._is_found = np.zeros(len(tokens), np.bool_)
        self._reply: list[int] = []
        self._place = Place(0)
        self._run = 0  # tokens matched since the start or the last mismatch
        self._is_searched = False  # whether the place was found by a search, and no token expected there came yet
        self._break: _Break | None = None
        self._edits: dict[int, list[Edit]] = {}  # by the first token of `old`, latest first

    @property
    def num_found(self) -> int:
        return int(self._is_found.sum())

    def follow(self, reply: IntArray) -> None:
        """Take in what is new of the reply, int32 [r]: the same one as before, grown at its end."""
        for token in reply[len(self._reply) :].tolist():
            is_expected = token == next(self._upcoming(self._place), None)
            self._reply.append(token)
            if is_expected:
                self._advance()
            else:
                self._lose(token)

    @property
    def is_followed(self) -> bool:
        """Whether the reply has been found to follow it."""
        return self._run >= PROVEN

    def chains(self, max_tokens: int) -> list[tuple[list[int], list[int]]]:
        """What may come next, likeliest first, and why each token may, as `evidence` counts reasons.

        At most `max_tokens` each. One chain while the reply follows the prediction, some guesses after a mismatch.
        """
        found = []
        for place in self._guesses():
            tokens = list(islice(self._upcoming(place), max_tokens if self.is_followed else min(max_tokens, GUESS_LEN)))
            if not tokens:
                continue
            run = self._run if place == self._place else 0
            reasons = [_REASON_OF_RUN[min(run + depth, _LONGEST_RUN)] for depth in range(len(tokens))]
            if place == self._place and self._is_searched:
                reasons[0] = SEARCHED
            found.append((tokens, reasons))
        return found

    def _upcoming(self, place: Place) -> Iterator[int]:
        """The tokens from a place on, replacements made."""
        yield from place.pending
        position = place.position
        while position < len(self._ids):
            edit = self._edit_at(position)
            if edit is None:
                yield self._ids[position]
                position += 1
            else:
                yield from edit.new
                position += len(edit.old)

    def _edit_at(self, position: int) -> Edit | None:
        """The latest replacement that fits the prediction at a position and has not failed more than it came."""
        for edit in self._edits.get(self._ids[position], ()) if position < len(self._ids) else ():
            if edit.balance >= 0 and tuple(self._ids[position : position + len(edit.old)]) == edit.old:
                return edit
        return None

    def _advance(self) -> None:
        """The expected token came."""
        position, pending = self._place.position, self._place.pending
        edit = None if pending else self._edit_at(position)
        if edit is not None:
            edit.balance = min(edit.balance + 1, 2)
            position, pending = position + len(edit.old), edit.new
        self._run += 1
        self._is_searched = False
        if pending:
            self._place = Place(position, pending[1:])
            return
        self._place = Place(position + 1)
        if self._run == PROVEN:
            self._prove(position)
        if self._run >= PROVEN:
            self._is_found[position] = True

    def _prove(self, position: int) -> None:
        """The last PROVEN tokens matched up to `position`: the break is over, and was perhaps a replacement."""
        start = position - PROVEN + 1
        self._is_found[max(start, 0) : position] = True
        broken, self._break = self._break, None
        if broken is None:
            return
        end = len(self._reply) - PROVEN
        while end > broken.num_reply and start > broken.position and self._reply[end - 1] == self._ids[start - 1]:
            end, start = end - 1, start - 1
        old, new = tuple(self._ids[broken.position : start]), tuple(self._reply[broken.num_reply : end])
        if 0 < len(old) <= MAX_EDIT and 0 < len(new) <= MAX_EDIT:
            others = [edit for edit in self._edits.get(old[0], []) if edit.old != old]
            self._edits[old[0]] = [Edit(old, new), *others][:MAX_EDITS]

    def _lose(self, token: int) -> None:
        """A token came that was not expected: find the place again, or guess."""
        place = self._place
        edit = None if place.pending else self._edit_at(place.position)
        if edit is not None:
            edit.balance -= 1
            if token == self._ids[place.position]:  # the prediction was right as it stood
                self._place, self._run = Place(place.position + 1), max(self._run, 1)
                self._is_found[place.position] = True
                return
        if self._break is None:
            self._break = _Break(place.position, len(self._reply) - 1)
        self._run, self._is_searched = 0, False
        found = find_place(self._tokens, np.array(self._reply[-32:], np.int32), self._break.position)
        since = len(self._reply) - self._break.num_reply
        if found >= 0:
            self._place, self._run, self._is_searched = Place(int(found)), 1, True
        else:
            self._place = Place(min(self._break.position + since, len(self._ids)))

    def _guesses(self) -> list[Place]:
        """Where the reply may be: while it is lost, also where the prediction broke off, and one token further."""
        if self._break is None or self._run > 1:
            return [self._place]
        position = self._break.position
        return list(dict.fromkeys((self._place, Place(position), Place(min(position + 1, len(self._ids))))))


def warm_up() -> None:
    """Compile the search for a place."""
    find_place(np.arange(3, dtype=np.int32), np.arange(2, dtype=np.int32), 0)


@kernel(borrows=True)
def find_place(tokens: NDArray[np.int32], reply: NDArray[np.int32], position: int) -> int:
    """The place in `tokens` before which the end of `reply` stands, the longest match; -1 for none.

    A match of ANYWHERE tokens counts wherever it is, a shorter one from `position` on within WINDOW; of equal ones
    the nearest to `position`, before it only where none is after it.
    """
    found, best_length, best_distance = -1, 0, 0
    for place in range(1, len(tokens) + 1):
        length = 0
        while length < len(reply) and length < place and tokens[place - 1 - length] == reply[len(reply) - 1 - length]:
            length += 1
        ahead = place - 1 - position
        if length == 0 or (length < ANYWHERE and not 0 <= ahead < WINDOW):
            continue
        distance = ahead if ahead >= 0 else len(tokens) - ahead
        if length > best_length or (length == best_length and distance < best_distance):
            found, best_length, best_distance = place, length, distance
    return found
