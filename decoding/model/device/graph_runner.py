"""Captures forwards over one store for a few numbers of tokens (buckets) and replays them: a launch is one call.

Owns the buffers that forwards read and the logits that they write. A step that fits no bucket, such as a very long
prompt, is run by the model itself. Invariant: every forward of a bucket queues the same operations; a step differs only
in data.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch

from decoding.attention.backend import StaticAttention
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockTable, num_blocks_for
from decoding.cache.kv_store import KvRows, KvStore
from decoding.cache.step_tensors import StepBuffers, StepRoom, StepTensors
from decoding.errors import ModelRefused
from decoding.model.device.capture import Capture, Launch
from decoding.model.device.runner import Forward, Progress, Runner, stopwatch_on
from decoding.model.features import FeatureTap, Seen
from decoding.model.self_test import ROOM, TOLERANCES, Testable, same_bits_up_to

# Shape suffixes: L padded tokens that need logits, V vocabulary.
BUCKETS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048)  # tokens
FIXED_ROWS = 64  # up to so many tokens a target's forward has one shape, and so one rounding, for a few per cent more
MOST_LOGITS = 1024  # of a step: of a prompt's many tokens few need logits, which take the room of hundreds of others
MOST_SEGMENTS = 256  # of a step, that there is room for the longest block tables of
FEW_TOKENS = 16  # of the vocabulary, that replays are checked with
NUM_SEQUENCES = 12  # of the self-test's room, that the test of exactness holds at a time
TREE_ROWS = 8  # room for tree nodes per token of the largest bucket: a growing tree's earlier nodes are passed again


class StaticModel(Runner, Protocol):
    """A model whose forwards can be captured. num_logits: of one token; taps: on its features."""

    num_logits: int
    taps: list[FeatureTap]

    def run_static(self, step: StepTensors) -> torch.Tensor:
        """[L, V]: logits of the tokens `logit_rows_L`, in any dtype. Copies nothing to the host."""
        ...


def buckets_for(most_rows: int, least_rows: int = 1) -> Sequence[int]:
    """The buckets to capture for steps of up to `most_rows` tokens. least_rows: the fewest tokens of a forward."""
    buckets = [each for each in BUCKETS if each >= least_rows] or BUCKETS[-1:]
    return buckets[: bisect_left(buckets, most_rows) + 1]


class GraphRunner:
    """store: of all its steps. most_keys: the most keys of a segment. buckets: numbers of tokens, ascending."""

    def __init__(
        self, model: StaticModel, attention: StaticAttention, store: KvStore, most_keys: int, buckets: Sequence[int]
    ) -> None:
        most_rows = buckets[-1]
        most_logits, tables = min(most_rows, MOST_LOGITS), min(most_rows, MOST_SEGMENTS) * -(-most_keys // BLOCK_LEN)
        work = attention.most_work(most_rows, most_keys)
        room = StepRoom(most_rows, most_logits, TREE_ROWS * most_rows, tables, most_keys, work)
        self._model = model
        self._store = store
        self._buckets = buckets
        self._attention = attention
        self._buffers = StepBuffers(store, room)
        self._logits_LV = torch.empty(most_logits, model.num_logits, dtype=torch.float32, device=store.device)
        self._new_stopwatch = stopwatch_on(store.device)
        self.on_replay: Callable[[StepBatch], None] = lambda _batch: None  # called before each
        self._replays: dict[int, Launch] = {}
        self._features: dict[int, list[Seen]] = {}

    def try_capture(self, capture: Capture, progress: Progress) -> bool:
        """Capture the forwards and check them. If they cannot be captured, or give other logits than the operations
        that were captured, report the reason to `progress` and return False."""
        try:
            self.capture(capture, progress)
            for num_rows in self._buckets:
                self._check(num_rows)
        except ModelRefused as refused:
            progress(f"Forwards are not captured: {refused}", 1.0)
            return False
        return True

    def capture(self, capture: Capture, progress: Progress) -> None:
        """Capture the forwards of all buckets, the largest first, whose memory the smaller ones then reuse."""
        before, nothing = capture.reserved_bytes(), _nothing(self._store)
        for place, num_rows in enumerate(reversed(self._buckets)):
            progress(f"Capturing forwards of {num_rows} rows", place / len(self._buckets))
            self._buffers.stage(nothing, num_rows, self._attention.share_out(nothing))
            self._replays[num_rows] = capture.note(partial(self._queue, self._buffers.view(num_rows)))
            self._features[num_rows] = [dict(tap.seen) for tap in self._model.taps]
        mebibytes = (capture.reserved_bytes() - before) / 2**20
        progress(f"Captured forwards of {len(self._buckets)} sizes in {mebibytes:.0f} MiB", 1.0)

    def _check(self, num_rows: int) -> None:
        """Compare replays with the operations that were captured, over other steps. Raises ModelRefused."""
        room, step = self._buffers.room, self._buffers.view(num_rows)
        num_tokens = max(1, min(num_rows, min(room.keys, self._store.num_blocks * BLOCK_LEN) // 2))
        rows = KvRows(_first_blocks(2 * num_tokens))
        for _ in range(2):  # a prompt, and what follows it
            tokens, num_logits = np.arange(num_tokens, dtype=np.int32) % FEW_TOKENS, min(num_tokens, room.logits)
            batch = pack([Segment(rows, tokens, None, num_logits)], self._store)
            self._buffers.stage(batch, num_rows, self._attention.share_out(batch))
            expected_RV = self._model.run_static(step)[:num_logits].float()
            self._replays[num_rows]()
            difference = float((self._logits_LV[:num_logits] - expected_RV).abs().max() / expected_RV.abs().max())
            if not difference <= TOLERANCES[self._store.dtype]:
                raise ModelRefused(
                    f"a replay of {num_rows} rows gives logits that differ by {difference:.2g} of the largest one"
                )
            rows.length += num_tokens

    def holds(self, batch: StepBatch) -> bool:
        """Whether the step fits a captured forward."""
        return not batch.embedded and self._buffers.room.holds(batch, self._attention.share_out(batch))

    def launch(self, batch: StepBatch) -> Forward:
        """Replay the smallest bucket that holds the step; if none does, run the model."""
        assert batch.store is self._store, "a captured forward writes to the store it was captured with"
        work = self._attention.share_out(batch)
        if batch.embedded or not self._buffers.room.holds(batch, work):
            return self._model.launch(batch)
        self.on_replay(batch)
        num_rows = self._buckets[bisect_left(self._buckets, batch.num_tokens)]
        self._buffers.stage(batch, num_rows, work)
        stopwatch = self._new_stopwatch()  # what the host packs while the device waits is not the forward's time
        self._replays[num_rows]()
        stopwatch.stop()
        for tap, seen in zip(self._model.taps, self._features[num_rows], strict=True):
            tap.seen.update(seen)
        return Forward(self._logits_LV[: len(batch.logit_rows_R)], stopwatch.seconds)

    def _queue(self, step: StepTensors) -> None:
        logits_LV = self._model.run_static(step)
        self._logits_LV[: len(logits_LV)].copy_(logits_LV)


def _first_blocks(num_tokens: int) -> BlockTable:
    """Of a store in which nobody holds any."""
    table = BlockTable()
    for block in range(num_blocks_for(num_tokens)):
        table.append(block)
    return table


def _nothing(store: KvStore) -> StepBatch:
    """A step of one token in the trash block, to capture with."""
    table = BlockTable()
    table.append(store.trash_block)
    return pack([Segment(KvRows(table), np.zeros(1, np.int32))], store)


class Exact(Testable, Runner, Protocol):
    is_row_exact: bool


class _Replayed:
    """A model whose forwards are a runner's, over the runner's store."""

    def __init__(self, model: Testable, runner: Runner, store: KvStore) -> None:
        self.dtype, self.kv_dtype, self.weights = model.dtype, model.kv_dtype, model.weights
        self.vocab_size = model.vocab_size
        self.num_parameters, self.max_model_len, self.state_bytes = model.num_parameters, model.max_model_len, 0
        self._runner, self._store = runner, store

    def new_store(self, _num_blocks: int) -> KvStore:
        return self._store

    def forward(self, batch: StepBatch) -> torch.Tensor:
        return self._runner.launch(batch).logits_RV.clone()


def exact_rows(model: Exact, runner: Runner, store: KvStore, most_rows: int) -> int:
    """Within steps of up to so many tokens a token's logits have the same bits in a tree, in a chain, as part of a
    prompt, after a prefix that is found, and in any batch; 0 if in none. most_rows: of any step. Writes to blocks of
    the store, of which nobody holds any.

    On a device matrix products round by the number of rows that they have, so steps of up to `FIXED_ROWS` tokens all
    replay the forward of so many; with `--exact` they do not, and larger steps and prompts have the same bits, too.
    """
    if runner is model and not model.is_row_exact:  # operation by operation
        return 0
    num_slots = store.num_blocks * BLOCK_LEN
    room = min(num_slots, model.max_model_len)
    if num_slots < NUM_SEQUENCES * ROOM or room < FIXED_ROWS:
        return 0
    largest = max(FIXED_ROWS, min(most_rows, room)) if model.is_row_exact else FIXED_ROWS
    return same_bits_up_to(_Replayed(model, runner, store), sorted({largest, FIXED_ROWS}, reverse=True))
