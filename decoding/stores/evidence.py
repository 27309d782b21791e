"""What speaks for a token that may come next, source by source, as classes.

Owns the numbering of the classes. What a class is worth is learned: `acceptance_model`. Knows nothing of trees.
Invariant: a class belongs to one source, and says either how the source names the token or that it names others.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import Source
from decoding.kernels.numba_kernel import kernel

# Not as plain integers, for each of which numba would compile anew what it is handed to.
CONTEXT, ADJACENCY, NGRAM, MODEL, PREDICTION = (
    np.int64(Source.CONTEXT),
    np.int64(Source.ADJACENCY),
    np.int64(Source.NGRAM),
    np.int64(Source.DRAFT_MODEL),
    np.int64(Source.PREDICTION),  # and the request's grammar with it
)
NUM_SOURCES = int(PREDICTION) + 1  # place 0 is nobody's
SILENT = -1  # the source says nothing of what follows the node

_WEIGHT_BOUNDS = (0.999, 0.99, 0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15, 0.06, 0.02)
_NUM_WEIGHTS = len(_WEIGHT_BOUNDS) + 1
_SUFFIX_BOUNDS = (20, 12, 8, 6, 5, 4, 3, 2)  # tokens shared with the copied occurrence
_NUM_SUFFIXES = len(_SUFFIX_BOUNDS) + 1
_LUCK_BOUNDS = (0.05, 0.22, 0.6)  # rising, of the exponential variate a token is drawn with: the less, the likelier
_NUM_LUCKS = len(_LUCK_BOUNDS) + 1
_NUM_COPIES = 4  # ways to be copied: from the text or the session's replies, and whether other places agree
_NUM_TIERS, _NUM_ENTRIES, _NUM_RANKS = 2, 8, 2
NUM_DEPTHS = 8  # that are told apart in what a block names: each knows less of its path than the one before
GUESSED, SEARCHED, MATCHED_ONE, MATCHED_THREE, MATCHED_MORE, FORCED = range(6)  # why a token is foreseen
_FORESEEN_CHANCES = (0.25, 0.4, 0.85, 0.93, 0.97, 0.98)
_NUM_REASONS = len(_FORESEEN_CHANCES)

_COPIES = 0
_OTHER_COPIES = _COPIES + _NUM_SUFFIXES * _NUM_COPIES * _NUM_LUCKS
_SUCCESSORS = _OTHER_COPIES + _NUM_SUFFIXES
_OTHER_SUCCESSORS = _SUCCESSORS + _NUM_TIERS * _NUM_WEIGHTS
_NGRAMS = _OTHER_SUCCESSORS + _NUM_TIERS * _NUM_WEIGHTS
_OTHER_NGRAMS = _NGRAMS + _NUM_ENTRIES * _NUM_WEIGHTS
_SAID = _OTHER_NGRAMS + _NUM_ENTRIES * _NUM_WEIGHTS
_OTHERS_SAID = _SAID + _NUM_RANKS * _NUM_WEIGHTS
_FORESEEN = _OTHERS_SAID + _NUM_WEIGHTS
_OTHER_FORESEEN = _FORESEEN + _NUM_REASONS * _NUM_LUCKS
_DEEPER = _OTHER_FORESEEN + _NUM_REASONS  # what a block names below its first depth, which counts as any model's
_OF_A_DEPTH = (_NUM_RANKS + 1) * _NUM_WEIGHTS
NUM_CLASSES = _DEEPER + (NUM_DEPTHS - 1) * _OF_A_DEPTH


@kernel(forceinline=True, borrows=True)
def step_of(value: float, bounds: tuple[float, ...]) -> int:
    """Which of the falling `bounds` is the first that `value` reaches; how many there are, where it reaches none."""
    for step, bound in enumerate(bounds):
        if value >= bound:
            return step
    return len(bounds)


@kernel(forceinline=True, borrows=True)
def copied_class(suffix_len: int, is_reply: bool, is_agreed: bool, variate: float) -> int:
    """Of the token that followed an earlier occurrence of the last `suffix_len` tokens, in the text or in the session's
    replies; is_agreed: whether after others it did, too; variate: as below."""
    copies = step_of(suffix_len, _SUFFIX_BOUNDS) * _NUM_COPIES + 2 * is_reply + is_agreed
    return int(_COPIES + copies * _NUM_LUCKS + _luck(variate))


@kernel(forceinline=True, borrows=True)
def other_copied_class(suffix_len: int) -> int:
    """Of a token where another was copied."""
    return int(_OTHER_COPIES + step_of(suffix_len, _SUFFIX_BOUNDS))


@kernel(forceinline=True, borrows=True)
def foreseen_class(reason: int, variate: float) -> int:
    """Of a token that the request's prediction or grammar goes on with."""
    return int(_FORESEEN + reason * _NUM_LUCKS + _luck(variate))


@kernel(forceinline=True, borrows=True)
def other_foreseen_class(reason: int) -> int:
    """Of a token where another was foreseen."""
    return int(_OTHER_FORESEEN + reason)


@kernel(forceinline=True, borrows=True)
def is_forced(kind: int) -> bool:
    """Whether a class is of a token that the grammar forces."""
    return bool(_OTHER_FORESEEN - _NUM_LUCKS <= kind < _OTHER_FORESEEN)


@kernel(forceinline=True, borrows=True)
def _luck(variate: float) -> int:
    """How well a token fares in the draw: its variate is exponential, and the least of variate over share is drawn."""
    for luck, bound in enumerate(_LUCK_BOUNDS):
        if variate < bound:
            return luck
    return len(_LUCK_BOUNDS)


@kernel(forceinline=True, borrows=True)
def listed_classes(source: int, kind: int) -> tuple[int, int]:
    """Where the classes begin of what a list of `kind` names, and of what it does not name.

    kind: of successors 0 for those of a token, 1 of two; of n-grams 0 to 3 for those of three tokens and 4 to 7 for
    those of four, by how often they were seen; of what the draft model says 0 for its best, 1 for the others, and two
    more for each depth below the first of what names a block.
    """
    if source == ADJACENCY:
        return _SUCCESSORS + kind * _NUM_WEIGHTS, _OTHER_SUCCESSORS + kind * _NUM_WEIGHTS
    if source == NGRAM:
        return _NGRAMS + kind * _NUM_WEIGHTS, _OTHER_NGRAMS + kind * _NUM_WEIGHTS
    depth, rank = kind // _NUM_RANKS, kind % _NUM_RANKS
    if depth == 0:
        return _SAID + rank * _NUM_WEIGHTS, _OTHERS_SAID
    first = _DEEPER + (depth - 1) * _OF_A_DEPTH
    return first + rank * _NUM_WEIGHTS, first + _NUM_RANKS * _NUM_WEIGHTS


@kernel(forceinline=True, borrows=True)
def weight_step(weight: float) -> int:
    """Of a token's weight among those listed with it."""
    return step_of(weight, _WEIGHT_BOUNDS)


@kernel(forceinline=True, borrows=True)
def is_named(kind: int) -> bool:
    """Whether a class is of a token that the source itself names."""
    if kind < 0:
        return False
    if kind < _SUCCESSORS:
        return bool(kind < _OTHER_COPIES)
    if kind < _NGRAMS:
        return bool(kind < _OTHER_SUCCESSORS)
    if kind >= _DEEPER:
        return bool((kind - _DEEPER) % _OF_A_DEPTH < _NUM_RANKS * _NUM_WEIGHTS)
    return bool(kind < _OTHER_NGRAMS or _SAID <= kind < _OTHERS_SAID or _FORESEEN <= kind < _OTHER_FORESEEN)


def meant_chances() -> NDArray[np.float32]:
    """float32 [K]: of a listed token its weight, of a copied one by what it shares, of one that is not named little."""
    chances = np.full(NUM_CLASSES, 0.02, np.float32)
    weights = np.sqrt(np.array((1.0, *_WEIGHT_BOUNDS)) * np.array((*_WEIGHT_BOUNDS, 0.001)))
    for first, last in ((_SUCCESSORS, _OTHER_SUCCESSORS), (_NGRAMS, _OTHER_NGRAMS), (_SAID, _OTHERS_SAID)):
        chances[first:last] = np.tile(weights, (last - first) // _NUM_WEIGHTS)
    copied = np.repeat((0.95, 0.9, 0.85, 0.8, 0.7, 0.6, 0.5, 0.35, 0.2), _NUM_COPIES * _NUM_LUCKS)
    chances[_COPIES:_OTHER_COPIES] = copied
    chances[_FORESEEN:_OTHER_FORESEEN] = np.repeat(_FORESEEN_CHANCES, _NUM_LUCKS)
    chances[_DEEPER:] = np.tile(chances[_SAID:_FORESEEN], NUM_DEPTHS - 1)
    return chances
