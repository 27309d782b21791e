"""What an entry of a table of successors holds."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.stores.ngram import NgramStore, find_longest
from decoding.stores.successor_table import NO_TOKEN, SuccessorTable


def successors_of(table: SuccessorTable, entry: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Copies of an entry's tokens and probabilities, most likely first; both empty for entry -1."""
    num_known = int((table.arrays.ids[entry] != NO_TOKEN).sum()) if entry >= 0 else 0
    return table.arrays.ids[entry, :num_known].copy(), table.arrays.probabilities[entry, :num_known].copy()


def successors(store: NgramStore, context: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float32], int]:
    """Next tokens and probabilities by the longest n-gram known, and its n; 0 when there is none."""
    entry, ngram = find_longest(store.arrays, context)
    return *successors_of(store, entry), ngram
