"""A draft tree's shape without its tokens: which rank of which node's candidates takes each slot.

Owns the JSON file such a tree is kept in, with how it was made. Knows nothing of stores.
Invariant: slots are in order of worth and the first n of them form a tree: a slot's parent and its
siblings of lower rank come before it, so one file serves every budget.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from decoding.core.files.output import write_output
from decoding.errors import ConfigError

MAX_CHILDREN = 10


class StaticTree(msgspec.Struct, frozen=True, kw_only=True):
    """parents[i], ranks[i]: slot i takes candidate number ranks[i] of slot parents[i]; slot 0 is the root (-1, 0).

    made: how the tree came to be, for people. counts: of a tuned tree, how often each slot was accepted.
    """

    made: dict[str, str | int | float]
    parents: list[int]
    ranks: list[int]
    counts: list[int] = []

    def __post_init__(self) -> None:
        assert len(self.parents) == len(self.ranks) >= 1
        assert (self.parents[0], self.ranks[0]) == (-1, 0), "slot 0 is the root"
        children = [0] * len(self.parents)
        for slot, (parent, rank) in enumerate(zip(self.parents[1:], self.ranks[1:], strict=True), start=1):
            assert 0 <= parent < slot, (slot, parent)
            assert rank == children[parent] < MAX_CHILDREN, (slot, parent, rank)
            children[parent] += 1

    def __len__(self) -> int:
        return len(self.parents)

    def arrays(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(parents, ranks), int32 [n]."""
        return np.array(self.parents, np.int32), np.array(self.ranks, np.int32)

    def depth(self) -> int:
        depths = [0] * len(self.parents)
        for slot in range(1, len(self.parents)):
            depths[slot] = depths[self.parents[slot]] + 1
        return max(depths)


def read_tree(path: str) -> StaticTree:
    """Raises ConfigError for a file that cannot be read or holds no tree."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=StaticTree)
    except (OSError, msgspec.DecodeError, AssertionError) as error:
        raise ConfigError(f"{path} is no draft tree: {error}") from error


def is_tree(content: bytes) -> bool:
    """Whether a file with this content holds a tree."""
    try:
        return bool(msgspec.json.decode(content, type=StaticTree))
    except (msgspec.DecodeError, AssertionError):
        return False


def write_tree(path: Path, tree: StaticTree) -> None:
    """Raises ConfigError for a file that is there and holds no tree."""
    write_output(path, msgspec.json.encode(tree) + b"\n", is_tree)


@cache
def shipped_tree(name: str) -> StaticTree:
    """A tree that comes with the package: "general"."""
    return read_tree(str(Path(__file__).with_name("trees") / f"{name}.json"))
