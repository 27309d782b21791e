"""A rank that follows, and the orders by which rank 0 tells it what to do, as arrays of integers.

It has its own share of the weights and of all keys and values. Knows packed steps; nothing of requests, nor of how
words get from one process to another. Invariant: an order read is the order written, and a follower's stores hold for
its heads what rank 0's hold for theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.model.checkpoint import folder_of
from decoding.model.device.capture import capture_on
from decoding.model.device.runner import Runner, silent
from decoding.model.parallel.collectives import Ranks
from decoding.model.parallel.ring import RingReader, Words
from decoding.model.parallel.shards import load_share
from decoding.model.target_model import TargetModel


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


class Follower:
    def __init__(self, model: TargetModel, ring: RingReader) -> None:
        self._model, self._ring = model, ring
        self._stores: dict[int, KvStore] = {}
        self._runners: dict[int, Runner] = {}

    @classmethod
    def load(cls, config: EngineConfig, rank: int, folder: Path, ring: RingReader) -> Follower:
        """Load this rank's share of a model beside the others. config: resolved, with this rank's device. folder: as of
        `Ranks`."""
        device = torch.device(config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        ranks = Ranks(rank, config.tensor_parallel_size, device, folder)
        model, _ = load_share(folder_of(config.model), config, ranks)
        capture = capture_on(model.device) if config.graphs else None
        return cls(TargetModel(model.eval(), config, silent, capture), ring)

    def run(self) -> None:
        """Do what rank 0 says until this process is ended."""
        while True:
            self.obey(*read(self._ring.read))

    def obey(self, order: Order, arrays: list[Words]) -> None:
        (number, *numbers), rest = arrays[0].tolist(), arrays[1:]
        match order:
            case Order.OPEN:
                self._stores[number] = self._model.new_store(*numbers)
            case Order.CLOSE:
                del self._stores[number]
                self._runners.pop(number, None)
            case Order.MOVE:
                self._stores[number].move(*rest)
            case Order.COPY:
                self._stores[number].copy_block(*numbers)
            case Order.CLEAR:
                self._stores[number].clear()
            case Order.CAPTURE:
                self._runners[number] = self._model.runner_over(self._stores[number], *numbers)
            case Order.LAUNCH:
                self._model.launch(step_of(rest, self._stores[number]))
            case Order.REPLAY:
                self._runners[number].launch(step_of(rest, self._stores[number]))
