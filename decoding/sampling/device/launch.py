"""Launches a step's sampling kernels and reads their results.

Owns the memory of two steps on both sides, which is kept for later ones: a step may be launched before the last one's
results are read. Invariant: the host waits only in `Launched.wait`, one copy sends all tables, and one brings all
results back.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any, NamedTuple

import torch

from decoding.cache.mirror import Mirror, power_of_2
from decoding.core.top_tokens import TopTokens
from decoding.sampling.device.plan import ROOT_WORDS, Plan, found_top
from decoding.sampling.device.results import Results
from decoding.sampling.device.tables import Tables

# Shape suffixes: R rows of logits, V vocabulary, E edited rows.
BLOCK = 2048  # tokens of the vocabulary that one program reads
ENTRIES = 512  # entries of a list that are changed at a time
FEWEST_NODES = 64  # a walk is compiled for at least so many nodes


class Kernels(NamedTuple):
    """Triton's, each launched as `kernel[grid](arguments)`, or what stands for them."""

    scan: Any
    draw: Any
    walk: Any
    rank: Any
    score: Any
    mask: Any
    change: Any


@cache
def triton_kernels() -> Kernels:
    from decoding.kernels.gpu.sampling.draw import draw  # Triton may not be installed elsewhere
    from decoding.kernels.gpu.sampling.edit import change, mask
    from decoding.kernels.gpu.sampling.scan import rank, scan, score
    from decoding.kernels.gpu.sampling.walk import walk

    return Kernels(scan, draw, walk, rank, score, mask, change)


class _Scratch:
    """What kernels leave for those after them, for so many jobs of so many blocks: as flat memory that grows."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._size = 0, 0

    def reserve(self, num_jobs: int, num_blocks: int, num_top: int) -> None:
        size = num_jobs * num_blocks, num_jobs * num_blocks * num_top
        if size[0] <= self._size[0] and size[1] <= self._size[1]:
            return
        places, tops = (max(power_of_2(new), old) for new, old in zip(size, self._size, strict=True))
        self._size = places, tops
        with torch.inference_mode(False):
            self.bests = torch.empty(places, dtype=torch.int64, device=self._device)
            self.masses = torch.empty(2 * places, device=self._device)
            self.noisy = torch.empty(places, device=self._device)
            self.tops = torch.empty(tops, dtype=torch.int64, device=self._device)
            self.drawn = torch.empty(places, dtype=torch.int32, device=self._device)


class _Side:
    """The memory of one plan: its tables, its results, and when these have arrived on the host."""

    def __init__(self, device: torch.device) -> None:
        self.tables, self.results = Tables(device), Mirror(torch.int32, device)
        self.arrived = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]


class Launched:
    """A plan's results while they are copied to the host. At most one other plan of the launcher is begun meanwhile:
    the one after that overwrites them."""

    def __init__(self, plan: Plan, side: _Side) -> None:
        self._plan, self._side, self._words = plan, side, side.results.device

    @property
    def tokens_B(self) -> torch.Tensor:
        """int32, on the device: what a plain plan draws for each sequence, -1 where nothing can be."""
        assert self._plan.is_plain, "trees of several nodes"
        return self._words[ROOT_WORDS - 1 : ROOT_WORDS * len(self._plan.walks_TX) : ROOT_WORDS]

    def wait(self) -> Results:
        """Wait for the results. This is the only wait of a step."""
        if self._side.arrived is not None:
            self._side.arrived.synchronize()
        return Results(self._plan, self._side.results.numbers[: self._plan.num_results].copy())


class Launcher:
    """Launches one plan after the other. block_len: the tokens of the vocabulary that one kernel program reads, a power
    of two; kernels: Triton's."""

    def __init__(self, device: torch.device, block_len: int = BLOCK, kernels: Kernels | None = None) -> None:
        self._block_len = block_len
        self._kernels = kernels or triton_kernels()
        self._sides, self._scratch = deque((_Side(device), _Side(device))), _Scratch(device)
        self._no_rows = torch.empty(0, 1, device=device)

    def launch(self, plan: Plan, logits_RV: torch.Tensor) -> Launched:
        """Queue the kernels of a plan over these logits, float32 and contiguous."""
        kernels, block_len, vocab_size = self._kernels, self._block_len, plan.vocab_size
        num_blocks = -(-vocab_size // block_len)
        self._sides.rotate()
        side, scratch = self._sides[0], self._scratch
        tables, results = side.tables, side.results
        tables.send(plan)
        scratch.reserve(plan.num_jobs, num_blocks, plan.num_top)
        results.reserve(plan.num_results)
        words, padded_blocks = results.device, power_of_2(num_blocks)
        values = words.view(torch.float32)
        source = (logits_RV, self._edited(plan, tables, logits_RV), *tables.both("jobs"))
        if plan.num_jobs:
            kernels.scan[(plan.num_jobs, num_blocks)](
                *source, scratch.bests, scratch.masses, scratch.noisy, scratch.tops, vocab_size, plan.num_top, block_len
            )
        if len(plan.walks_TX):
            kernels.draw[(plan.num_nodes,)](
                *source, scratch.bests, scratch.masses, scratch.noisy, scratch.drawn, vocab_size, num_blocks,
                padded_blocks, block_len,
            )  # fmt: skip
            most_nodes = max(FEWEST_NODES, power_of_2(plan.most_nodes))
            kernels.walk[(len(plan.walks_TX),)](
                tables.words("trees"), tables.words("nodes"), scratch.drawn, words, most_nodes
            )
        if plan.ranked:
            padded_places = power_of_2(num_blocks * plan.num_top)
            kernels.rank[(len(plan.ranked),)](
                tables.words("ranked"), scratch.bests, scratch.masses, scratch.tops, words, values, plan.first_ranked,
                num_blocks, plan.num_top, padded_blocks, padded_places,
            )  # fmt: skip
        if plan.scored:
            kernels.score[(len(plan.scored),)](
                tables.words("scored"),
                scratch.drawn,
                logits_RV,
                words,
                values,
                plan.first_scored,
                vocab_size,
                block_len,
            )
        results.host[: plan.num_results].copy_(words[: plan.num_results], non_blocking=True)
        if side.arrived is not None:
            side.arrived.record()
        return Launched(plan, side)

    def _edited(self, plan: Plan, tables: Tables, logits_RV: torch.Tensor) -> torch.Tensor:
        """float32 [E, V]: copies of rows with the processors' changes."""
        if not plan.edited:
            return self._no_rows
        kernels, vocab_size = self._kernels, plan.vocab_size
        edited_EV = logits_RV.new_empty(len(plan.edited), vocab_size)
        grid = (len(plan.edited), -(-vocab_size // self._block_len))
        kernels.mask[grid](tables.words("edited"), tables.bits(), logits_RV, edited_EV, vocab_size, self._block_len)
        for name, changes in (("changes", plan.changes), ("changes_after", plan.changes_after)):
            if changes:
                lists = (*tables.both(name), *tables.both("entries"))
                # without fusion, product and difference are rounded separately, as on the host
                kernels.change[(len(changes),)](
                    *lists, logits_RV, edited_EV, vocab_size, ENTRIES, enable_fp_fusion=False
                )
        return edited_EV


@cache
def _ranker(device: torch.device) -> Launcher:
    return Launcher(device)


def likeliest(logits_RV: torch.Tensor, num_top: int) -> TopTokens:
    """`top_tokens`, computed on the logits' device."""
    plan = Plan(logits_RV.shape[1], found_top(num_top))
    plan.rank_rows(0, len(logits_RV))
    return _ranker(logits_RV.device).launch(plan, logits_RV).wait().top(slice(None), min(num_top, plan.vocab_size))
