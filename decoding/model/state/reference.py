"""The walk, row by row in plain torch, on any device: slow, and obviously right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from decoding.kernels.cpu.states.order import Walk
from decoding.model.state.rule_rows import RuleRows

# Shape suffixes: N tokens and padding, H heads, K key width, V value width.


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
