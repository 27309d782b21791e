"""The walk on the CPU by the compiled kernel, for a step or for a commit of all recurrences at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from decoding.kernels.cpu.lanes import LANES
from decoding.kernels.cpu.program import Team
from decoding.kernels.cpu.states.order import Walk
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
from decoding.model.state.reference import Job

# Shape suffixes: N tokens and padding, H heads, K key width, V value width.
PARALLEL_WORK = 1 << 17  # with fewer numbers of states to update, waking another thread costs more than it saves


def fits(matrices: Sequence[tuple[int, int, int]]) -> bool:
    """Whether the kernel takes states of these shapes, [H, K, V]: whole vectors of values."""
    return all(width % LANES == 0 for _, _, width in matrices)


class CompiledWalk:
    """As `ReferenceWalk`."""

    def __init__(self) -> None:
        self._team = Team(walk_share)
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
        self._team.run(fields.ctypes.data, num_threads)
        return outs

    def _room(self, num_threads: int, num_floats: int) -> torch.Tensor:
        """Scratch states of all threads, kept between steps."""
        if num_threads * num_floats > len(self._scratch):
            self._scratch = torch.empty(2 * num_threads * num_floats)
        return self._scratch
