"""A picture of a prompt, as it crosses from server to worker: what the tower reads, and where its rows stand.

Pure data. Knows nothing of files, pixels or models.
Invariant: pictures of equal digests have equal rows, so that everything kept for a prompt is kept by the digests.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import shake_128

import msgspec
import numpy as np
from numpy.typing import NDArray

NEGATIVE = np.int32(-(2**31))


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
