"""In which order a step's rows run through a recurrence, from which state and to which, the same for all its layers;
and what walks: plain torch row by row on any device, slow and obviously right, or the CPU's compiled kernel.

A sequence's certain rows lead from its state to its next one; its candidates are walked depth first, so that there is
one scratch state for each branch point of the path. Invariant: a row is walked after its parent, while that one's state
is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.cache.state_pool import State
from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.cpu.program import Kernel
from decoding.kernels.cpu.states.order import ROW, Walk, inputs_of, lay_walk
from decoding.kernels.cpu.states.walk import (
    COUNTER,
    JOBS,
    NUM_COLUMNS,
    NUM_FIELDS,
    NUM_JOBS,
    ROOM_FLOATS,
    ROOMS_TAKEN,
    SCRATCH,
    WALK,
    WALK_LEN,
    walk_share,
)
from decoding.model.state.rule_rows import RuleRows

# Shape suffixes: M rows of the step, B segments, W inputs that a convolution looks back at, N tokens and padding,
# H heads, K key width, V value width.
PARALLEL_WORK = 1 << 17  # with fewer numbers of states to update, waking another thread costs more than it saves


@dataclass(slots=True)
class StepWalk:
    """walk: int64 [M, 3], a row, and the places that its parent's state is in and its own goes to: places count
    `states`, and scratch states from -1 downwards. num_scratch: how many. candidates: int64, the rows that a commit may
    drop. windows: by W, the inputs that each row's convolution reads."""

    batch: StepBatch
    states: list[State]
    walk: Walk
    num_scratch: int
    candidates: NDArray[np.int64]
    windows: dict[int, NDArray[np.int64]] = field(default_factory=dict)

    def inputs(self, width: int) -> NDArray[np.int64]:
        """int64 [M, W + 1]: the inputs of each row and of its nearest ancestors, itself first. They count the segments'
        windows of W inputs each, oldest first, and after them the step's rows."""
        if width not in self.windows:
            batch = self.batch
            self.windows[width] = inputs_of(batch.offsets, batch.tree_offsets, batch.parents_P, width)
        return self.windows[width]


def walk_of(batch: StepBatch) -> StepWalk:
    states: list[State] = []
    first_places, marks, mark_offsets = [], [], [0]
    for state, _ in batch.carried:
        first_places.append(len(states))
        states += [state.front, state.back, *(mark.state for mark in state.marks)]
        marks += [mark.num_rows for mark in state.marks]
        mark_offsets.append(len(marks))
    num_certain = np.array([each.num_certain for each in batch.carried], np.int64)
    certain_rows = np.repeat(batch.offsets[:-1] + num_certain, np.diff(batch.offsets))
    candidates = np.flatnonzero(np.arange(batch.num_tokens) >= certain_rows)
    walk, num_scratch = lay_walk(
        batch.offsets,
        batch.tree_offsets,
        batch.parents_P,
        num_certain,
        np.array(first_places, np.int64),
        np.array(mark_offsets, np.int64),
        np.array(marks, np.int64),
    )
    return StepWalk(batch, states, walk, num_scratch, candidates)


def chain_walk(rows: NDArray[np.int64]) -> Walk:
    """A walk of these rows, one after the other, on the one state there is."""
    walk = np.zeros((len(rows), 3), np.int64)
    walk[:, ROW] = rows
    return walk


class Job(NamedTuple):
    """One recurrence. places: [H, K, V] each, the states that a walk counts."""

    rows: RuleRows
    places: Sequence[torch.Tensor]


class ReferenceWalk:
    def run(self, jobs: Sequence[Job], walk: Walk, num_scratch: int = 0) -> list[torch.Tensor]:
        """[N, H, V] each: what the rows read, of the same walk through several recurrences. Writes the states that the
        walk goes to. num_scratch: as of `StepWalk`."""
        return [_run(job.rows, walk, job.places, num_scratch) for job in jobs]


def _run(rows: RuleRows, walk: Walk, places: Sequence[torch.Tensor], num_scratch: int) -> torch.Tensor:
    states = [*places, *(torch.empty_like(places[0]) for _ in range(num_scratch))]
    out_NHV = torch.zeros_like(rows.value_NHV)
    group = rows.value_NHV.shape[1] // rows.key_NGK.shape[1]
    for row, source, target in walk.tolist():
        key_HK = rows.key_NGK[row].repeat_interleave(group, 0)
        query_HK = rows.query_NGK[row].repeat_interleave(group, 0)
        decayed_HKV, value_HV = states[source] * rows.decay[row], rows.value_NHV[row]
        if rows.rate_NH is not None:
            found_HV = (decayed_HKV * key_HK[..., None]).sum(1)
            value_HV = (value_HV - found_HV) * rows.rate_NH[row, :, None]
        states[target].copy_(decayed_HKV + key_HK[..., None] * value_HV[:, None])
        out_NHV[row] = (states[target] * query_HK[..., None]).sum(1)
    return out_NHV


def fits(matrices: Sequence[tuple[int, int, int]]) -> bool:
    """Whether the kernel takes states of these shapes, [H, K, V]: whole vectors of values."""
    return all(width % LANES == 0 for _, _, width in matrices)


class CompiledWalk:
    """As `ReferenceWalk`."""

    def __init__(self) -> None:
        self._kernel = Kernel(walk_share)
        self._scratch = torch.empty(0)

    def run(self, jobs: Sequence[Job], walk: Walk, num_scratch: int = 0) -> list[torch.Tensor]:
        outs = [torch.zeros_like(job.rows.value_NHV) for job in jobs]
        addresses = [np.array([place.data_ptr() for place in job.places], np.int64) for job in jobs]
        table = np.empty((len(jobs), NUM_COLUMNS), np.int64)
        most_floats, num_numbers = 0, 0
        for line, job, out, places in zip(table, jobs, outs, addresses, strict=True):
            rows = job.rows
            num_heads, num_keys, width = job.places[0].shape
            line[:] = (
                rows.query_NGK.data_ptr(),
                rows.key_NGK.data_ptr(),
                rows.value_NHV.data_ptr(),
                rows.decay.data_ptr(),
                0 if rows.rate_NH is None else rows.rate_NH.data_ptr(),
                out.data_ptr(),
                places.ctypes.data,
                num_heads,
                rows.key_NGK.shape[1],
                num_keys,
                width,
                rows.decay.shape[2],
                rows.decay.shape[3],
                len(places),
            )
            most_floats = max(most_floats, width + num_scratch * num_keys * width)
            num_numbers += num_heads * num_keys * width * len(walk)
        num_threads = torch.get_num_threads() if num_numbers > PARALLEL_WORK else 1
        scratch = self._room(num_threads, most_floats)
        fields = np.empty(NUM_FIELDS, np.int64)
        fields[COUNTER] = fields[ROOMS_TAKEN] = 0
        fields[NUM_JOBS], fields[JOBS] = len(jobs), table.ctypes.data
        fields[WALK], fields[WALK_LEN] = walk.ctypes.data, len(walk)
        fields[SCRATCH], fields[ROOM_FLOATS] = scratch.data_ptr(), most_floats
        self._kernel.run(fields.ctypes.data, num_threads)
        return outs

    def _room(self, num_threads: int, num_floats: int) -> torch.Tensor:
        """Scratch states of all threads, kept between steps."""
        if num_threads * num_floats > len(self._scratch):
            self._scratch = torch.empty(2 * num_threads * num_floats)
        return self._scratch
