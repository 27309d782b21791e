"""What rank 0 tells the other ranks to do before it does the same, as arrays of integers.

Knows packed steps, and nothing of how words get from one process to another. Invariant: an order read is the order
written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import numpy as np

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.model.parallel.ring import Words


class Order(IntEnum):
    """Each with its arrays, of which the first begins with the number of a store."""

    OPEN = 0  # a store of so many blocks
    CLOSE = 1
    MOVE = 2  # rows: source slots, target slots
    COPY = 3  # a block: source, target
    CLEAR = 4
    CAPTURE = 5  # forwards over a store: the most keys and rows
    LAUNCH = 6  # a step's forward, operation by operation: its arrays
    REPLAY = 7  # the same, by captured forwards


DTYPES = {  # of a step's arrays, in the order in which they are written
    "blocks_T": np.int32,
    "table_offsets": np.int32,
    "ids_M": np.int64,
    "positions_M": np.int64,
    "offsets": np.int32,
    "parents_P": np.int32,
    "positions_P": np.int64,
    "tree_offsets": np.int32,
    "num_written": np.int32,
    "prefix_lens": np.int32,
    "is_chain": np.bool_,
    "write_slots_M": np.int64,
    "logit_rows_R": np.int64,
    "logit_offsets": np.int32,
}


def arrays_of(batch: StepBatch) -> list[Words]:
    return [getattr(batch, name).astype(np.int64) for name in DTYPES]


def step_of(arrays: Sequence[Words], store: KvStore) -> StepBatch:
    """The step of these arrays, over this rank's own store."""
    dtypes = zip(DTYPES.items(), arrays, strict=True)
    named: dict[str, Any] = {name: array.astype(dtype) for (name, dtype), array in dtypes}
    return StepBatch(store=store, **named)


def written(order: Order, arrays: Sequence[Words]) -> Words:
    """The order, the number of arrays, the length of each, and all of them."""
    return np.concatenate([np.array([order, len(arrays), *map(len, arrays)], np.int64), *arrays])


def read(words: Callable[[int], Words]) -> tuple[Order, list[Words]]:
    """An order and its arrays. words: takes so many from where they come from."""
    order, num_arrays = words(2).tolist()
    lengths = words(num_arrays)
    borders = np.cumsum(lengths)
    return Order(order), np.split(words(int(lengths.sum())), borders[:-1])
