"""A rank that follows: it does what rank 0 tells it, with its own share of the weights and of all keys and values.

Knows nothing of requests. Invariant: its stores hold for its heads what rank 0's hold for theirs.
"""

from __future__ import annotations

from pathlib import Path

import torch

from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.model.checkpoint import folder_of
from decoding.model.device.capture import capture_on
from decoding.model.device.runner import Runner, silent
from decoding.model.parallel.collectives import Ranks
from decoding.model.parallel.orders import Order, read, step_of
from decoding.model.parallel.ring import RingReader, Words
from decoding.model.parallel.shards import load_share
from decoding.model.target_model import TargetModel


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
