"""Rank 0 of a divided model: a model like any other for the engine, which tells the other ranks whatever it does.

Owns the other ranks' processes. Invariant: every rank runs the same forwards, moves and copies in the same order, so
that sums over ranks meet.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.model.checkpoint import resolve
from decoding.model.device.capture import Capture, capture_on
from decoding.model.device.graph_runner import BUCKETS, GraphRunner
from decoding.model.device.runner import Forward, Progress, Runner, silent
from decoding.model.kept.measurements import KeptMeasurements
from decoding.model.parallel.collectives import Ranks
from decoding.model.parallel.follower import Order, arrays_of, written
from decoding.model.parallel.ring import ReaderEnd, RingWriter, Words, new_memory
from decoding.model.parallel.shards import check_divisible, load_share
from decoding.model.refusal import refusing
from decoding.model.target_model import TargetModel

COMMAND = (sys.executable, "-m", "decoding.worker.shard")


class Team:
    """The processes of the other ranks, and the ring by which they are told what to do. They end with this process."""

    def __init__(self, config: EngineConfig, folder: Path) -> None:
        """config: resolved, of rank 0. folder: as of `Ranks`."""
        memory = new_memory()
        ends = [ReaderEnd.create(memory) for _ in range(1, config.tensor_parallel_size)]
        self._processes = [_started(config, rank, folder, end) for rank, end in enumerate(ends, start=1)]
        self._ring = RingWriter(memory, ends, [os.pidfd_open(process.pid) for process in self._processes])
        self._num_stores = 0
        self._closed: list[int] = []  # stores that are gone, of which the others are still to be told

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._processes)

    def wait(self) -> None:
        """Wait until every rank has started. Raises RankDied."""
        self._ring.wait_for_readers()

    def open(self, num_blocks: int) -> int:
        """Have every rank open a store; its number. Raises RankDied."""
        number, self._num_stores = self._num_stores, self._num_stores + 1
        self.tell(Order.OPEN, [number, num_blocks])
        return number

    def close(self, number: int) -> None:
        """Have every rank close a store, with the next order: a store may go while another order is being written."""
        self._closed.append(number)

    def tell(self, order: Order, numbers: Sequence[int], arrays: Sequence[Words] = ()) -> None:
        """numbers: a store's, and more. Raises RankDied."""
        while self._closed:
            self._write(Order.CLOSE, [self._closed.pop()], ())
        self._write(order, numbers, arrays)

    def dismiss(self) -> None:
        """End the other ranks."""
        for process in self._processes:
            process.kill()
            process.wait()
        self._ring.close()

    def _write(self, order: Order, numbers: Sequence[int], arrays: Sequence[Words]) -> None:
        self._ring.write(written(order, [np.array(numbers, np.int64), *arrays]))


class LeadModel(TargetModel):
    """num_parameters: of the whole model; num_bytes and bytes_per_slot are this rank's."""

    _is_leading = False  # while it is constructed every rank runs the same forwards by itself

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, progress: Progress, capture: Capture | None, team: Team
    ) -> None:
        """Arguments as of `TargetModel`, while every other rank constructs its own."""
        super().__init__(model, config, progress, capture)
        self.blindness = "it is divided (--tensor-parallel-size), and then reads text alone"
        self._team = team
        self.ranks = team.pids
        self._numbers: WeakKeyDictionary[KvStore, int] = WeakKeyDictionary()
        self._is_leading = True

    @classmethod
    def load(cls, config: EngineConfig, progress: Progress, _kept: KeptMeasurements | None = None) -> LeadModel:
        """Load a model by hub name or folder, divided among `config.tensor_parallel_size` processes, which are started
        and test it together at every start.

        Raises ConfigError and ModelRefused, and RankDied where another rank ends.
        """
        config, source = resolve(config)
        progress(f"Loading {config.model} on {config.tensor_parallel_size} ranks", 0.0)
        device = torch.device(config.device)
        if device.type == "cuda":
            torch.cuda.set_device(device.index or 0)  # Triton launches its kernels here
        with (
            refusing(f"model {config.model!r} cannot be loaded"),
            tempfile.TemporaryDirectory(prefix="gander-ranks-") as folder,
        ):
            check_divisible(config, source)
            team = Team(config, Path(folder))
            try:
                team.wait()
                ranks = Ranks(0, config.tensor_parallel_size, device, Path(folder))
                model, num_parameters = load_share(source, config, ranks)
                leader = cls(model.eval(), config, progress, capture_on(device) if config.graphs else None, team)
            except BaseException:
                team.dismiss()
                raise
        leader.num_parameters = num_parameters
        return leader

    def close(self) -> None:
        """End the other ranks: nothing can be run any more. They end with this process anyway."""
        self._team.dismiss()

    def new_store(self, num_blocks: int) -> KvStore:
        if not self._is_leading:
            return super().new_store(num_blocks)
        number = self._team.open(num_blocks)
        store = LeadStore(self._team, number, self.layers, num_blocks, self.kv_dtype, self.device)
        self._numbers[store] = number
        weakref.finalize(store, self._team.close, number)
        return store

    def runner_over(
        self, store: KvStore, most_keys: int, most_rows: int = BUCKETS[-1], progress: Progress = silent
    ) -> Runner:
        self._team.tell(Order.CAPTURE, [self._numbers[store], most_keys, most_rows])
        runner = super().runner_over(store, most_keys, most_rows, progress)
        if isinstance(runner, GraphRunner):
            runner.on_replay = self._tell_replay
        return runner

    def launch(self, batch: StepBatch) -> Forward:
        if self._is_leading:
            self._team.tell(Order.LAUNCH, [self._numbers[batch.store]], arrays_of(batch))
        return super().launch(batch)

    def _tell_replay(self, batch: StepBatch) -> None:
        """Have the others replay the forward of this step, which this rank is about to."""
        self._team.tell(Order.REPLAY, [self._numbers[batch.store]], arrays_of(batch))


class LeadStore(KvStore):
    """Rank 0's heads of all keys and values; what it does is done to the other ranks' as well."""

    def __init__(
        self,
        team: Team,
        number: int,
        layers: Sequence[LayerSpec],
        num_blocks: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__(layers, num_blocks, dtype, device)
        self._team, self._number = team, number

    def move(self, source: NDArray[np.int64], target: NDArray[np.int64]) -> None:
        self._team.tell(Order.MOVE, [self._number], [source, target])
        super().move(source, target)

    def clear(self) -> None:
        self._team.tell(Order.CLEAR, [self._number])
        super().clear()

    def copy_block(self, source: int, target: int) -> None:
        self._team.tell(Order.COPY, [self._number, source, target])
        super().copy_block(source, target)


def _started(config: EngineConfig, rank: int, folder: Path, end: ReaderEnd) -> subprocess.Popen[bytes]:
    """The process of a rank, which is told its configuration, with the device that follows rank 0's by `rank`."""
    device = torch.device(config.device)
    own = config.device if device.type == "cpu" else f"{device.type}:{(device.index or 0) + rank}"
    arguments = ["--parent", os.getpid(), "--rank", rank, "--folder", folder, "--ring", *end]
    process = subprocess.Popen([*COMMAND, *map(str, arguments)], stdin=subprocess.PIPE, pass_fds=end)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(replace(config, device=own)))
    process.stdin.close()
    return process
