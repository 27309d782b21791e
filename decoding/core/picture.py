"""A picture of a prompt, as it crosses from server to worker: what the tower reads, and where its rows stand; and the
positions by which a model turns queries and keys, where pictures have them other than a token's place.

M-RoPE, Qwen2-VL (arXiv 2409.12191, section 2.1): a token of a picture has three positions, of time, height and width,
and the text after it goes on from the largest.
Pure. Knows nothing of files, pixels or models.
Invariant: pictures of equal digests have equal rows and grids, so that everything kept for a prompt is kept by the
digests, and whoever finds a part of it again has the same positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

# Shape suffixes: P tokens of a prompt up to the end of its last picture, N of some tokens.
NEGATIVE = np.int32(-(2**31))
Grid = tuple[int, int, int]  # a picture's rows in time, height and width


class Numbers(msgspec.Struct, frozen=True, array_like=True):
    """An array. dtype: numpy's name; content: its bytes, in C order."""

    dtype: str
    shape: tuple[int, ...]
    content: bytes

    @classmethod
    def of(cls, array: NDArray[np.generic]) -> Numbers:
        return cls(str(array.dtype), array.shape, array.tobytes())

    def array(self) -> NDArray[np.generic]:
        """Of its own, so that it can be written."""
        return np.frombuffer(self.content, self.dtype).reshape(self.shape).copy()


class Span(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring tokens of a prompt. first: the place of the first of them."""

    first: int
    length: int

    @property
    def end(self) -> int:
        return self.first + self.length


class Picture(msgspec.Struct, frozen=True):
    """digest: of the pixels, and of all that says what the tower is given of them. inputs: of the tower, by the names
    of its arguments. spans: of the prompt, ascending; its rows take the place of these tokens' embeddings, in order."""

    digest: bytes
    inputs: dict[str, Numbers]
    spans: tuple[Span, ...]

    @property
    def num_rows(self) -> int:
        return sum(span.length for span in self.spans)

    def row_keys(self) -> NDArray[np.int32]:
        """int32 [num_rows]: for each row a negative number, which no token has, made of the digest."""
        content = shake_128(self.digest).digest(4 * self.num_rows)
        return np.frombuffer(content, np.int32) | NEGATIVE


def tokens_before_pictures(keys: NDArray[np.int32]) -> NDArray[np.int32]:
    """The first of a request's keys that are tokens, up to a row of a picture."""
    is_row = keys < 0
    return keys[: int(is_row.argmax())] if is_row.any() else keys


def end_of_pictures(pictures: Sequence[Picture]) -> int:
    """Where a prompt's text goes on after its last picture; 0 if it has none."""
    return max((span.end for picture in pictures for span in picture.spans), default=0)


class RotaryPositions(NamedTuple):
    """of_pictures_3P: int64, of time, height and width. shift: of tokens after these, whose three positions are equal,
    from their places."""

    of_pictures_3P: NDArray[np.int64]
    shift: int

    def at(self, places_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """[3, N]. places_N: of tokens in the sequence, or of a tree's nodes on their paths."""
        num_given = self.of_pictures_3P.shape[1]
        positions_3N = np.tile(places_N + self.shift, (3, 1))
        is_given = places_N < num_given
        positions_3N[:, is_given] = self.of_pictures_3P[:, places_N[is_given]]
        return positions_3N


def rotary_positions(pictures: Sequence[Picture], grids: Sequence[Grid]) -> RotaryPositions:
    """Of a prompt with these pictures. Raises ValueError where a picture's places are not as many as its grid has, side
    by side."""
    positions_3P = np.empty((3, end_of_pictures(pictures)), np.int64)
    place = position = 0
    for picture, grid in zip(pictures, grids, strict=True):
        first, end = picture.spans[0].first, picture.spans[-1].end
        if not end - first == picture.num_rows == np.prod(grid):
            raise ValueError(f"a picture of {' x '.join(map(str, grid))} rows has {picture.num_rows} places")
        positions_3P[:, place:first] = np.arange(position, position + first - place)
        position += first - place
        positions_3P[:, first:end] = position + np.indices(grid).reshape(3, -1)
        position, place = position + max(grid[1:]), end
    return RotaryPositions(positions_3P, position - place)
