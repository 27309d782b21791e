"""A device that answers at once: forwards that compute nothing, and kernels that say tokens by their positions.

Knows nothing of engines. Invariant: whatever the host does for a step it does here, too: its tensors, its work list,
its tables and its results are filled, copied and read. What the stand-ins take themselves is counted apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba as nb
import numpy as np
import torch
from numpy.typing import NDArray

from decoding.attention.triton.work import Kind, most_work, share_out
from decoding.cache.batch import StepBatch
from decoding.cache.kv_store import KvStore
from decoding.cache.step_tensors import StepTensors, Work, WorkRoom
from decoding.core.tree import IntArray
from decoding.model.device.graph_runner import GraphRunner, buckets_for
from decoding.model.device.runner import Forward, silent
from decoding.model.features import FeatureTap
from decoding.sampling.device.launch import Kernels

VOCAB_SIZE = 32_000
KINDS = (Kind(group=4, heads=8, keys=64, pairs=64, many=128),)  # an 8B of Llama's shape on a Hopper
JOB_WORDS, POSITION = 8, 3  # of a job's record, see `plan`


class Silence:
    """A capture whose replays do nothing."""

    def note(self, _launch: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def reserved_bytes(self) -> int:
        return 0


class Attention:
    """The part of Triton's attention that the host has in a step."""

    def prepare(self, batch: StepBatch) -> StepTensors:
        raise AssertionError(f"no forward runs, and none of {batch.num_tokens} tokens")

    attend: Callable[..., torch.Tensor]

    def share_out(self, batch: StepBatch) -> Work:
        return share_out(batch, KINDS)

    def most_work(self, num_rows: int, most_keys: int) -> WorkRoom:
        return most_work(num_rows, most_keys, KINDS)


class Model:
    """What is captured, and what runs a step that fits no bucket."""

    num_logits = VOCAB_SIZE

    def __init__(self) -> None:
        self.taps: list[FeatureTap] = []

    def run_static(self, step: StepTensors) -> torch.Tensor:
        raise AssertionError(f"captured, of {len(step.ids_T)} rows")

    def launch(self, batch: StepBatch) -> Forward:
        logits_RV = torch.empty(len(batch.logit_rows_R), VOCAB_SIZE)
        return Forward(logits_RV, lambda: 0.0)


def runner_over(store: KvStore, most_keys: int, most_rows: int) -> GraphRunner:
    """The runner of captured forwards, whose replays are over at once."""
    runner = GraphRunner(Model(), Attention(), store, most_keys, buckets_for(most_rows, least_rows=64))
    runner.capture(Silence(), silent)
    return runner


def move_nothing(*_moves: object) -> None:
    """As `moves.move_rows`."""


class Answers:
    """The sampler's kernels. seconds: that they took so far, which no device takes of a host. num_tokens: of how many
    a token is one, by its position alone, so that a text repeats itself and drafts are now right and now wrong."""

    def __init__(self, num_tokens: int) -> None:
        self.seconds = 0.0
        self.num_programs = 0  # of the kernel that is launched
        self.num_tokens = num_tokens
        self._jobs: NDArray[np.int64] = np.empty(0, np.int64)

    @property
    def kernels(self) -> Kernels:
        ignored = _Kernel(lambda *_arguments: None, self)
        walk, rank, scan = (_Kernel(act, self) for act in (self._walk, self._rank, self._scan))
        return Kernels(scan=scan, draw=ignored, walk=walk, rank=rank, score=ignored, mask=ignored, change=ignored)

    def _scan(self, _logits: object, _edited: object, jobs: torch.Tensor, *_others: object) -> None:
        self._jobs = jobs.numpy()

    def _walk(
        self, trees: torch.Tensor, nodes: torch.Tensor, _drawn: object, results: torch.Tensor, *_: object
    ) -> None:
        answer(self._jobs, trees.numpy()[: 3 * self.num_programs], nodes.numpy(), results.numpy(), self.num_tokens)

    def _rank(self, _ranked: object, *others: Any) -> None:
        results, values, first, num_top = others[3], others[4], others[5], others[7]
        name_likeliest(self.num_programs, results.numpy(), values.numpy(), first, num_top, self.num_tokens)


class _Kernel:
    """Launched as one of Triton's."""

    def __init__(self, act: Callable[..., None], answers: Answers) -> None:
        self._act, self._answers = act, answers

    def __getitem__(self, grid: tuple[int, ...]) -> _Kernel:
        assert all(size > 0 for size in grid), grid
        self._answers.num_programs = grid[0]
        return self

    def __call__(self, *arguments: Any, **_options: Any) -> None:
        started = time.perf_counter()
        self._act(*arguments)
        self._answers.seconds += time.perf_counter() - started


@nb.njit(cache=True)
def token_at(position: int, num_tokens: int) -> int:
    """Of a fixed text without end."""
    mixed = np.uint64(position) * np.uint64(0x9E3779B97F4A7C15)
    return int((mixed >> np.uint64(33)) % np.uint64(num_tokens))


@nb.njit(cache=True)
def answer(
    jobs: NDArray[np.int64], trees: NDArray[np.int64], nodes: NDArray[np.int64], results: IntArray, num_tokens: int
) -> None:
    """As `walk`, of tokens that `token_at` says."""
    for tree in range(len(trees) // 3):
        first, num_nodes, place = trees[3 * tree], trees[3 * tree + 1], trees[3 * tree + 2]
        node, depth = 0, 0
        while node >= 0:
            token = token_at(jobs[JOB_WORDS * (first + node) + POSITION], num_tokens)
            results[place + 1 + depth], results[place + 1 + num_nodes + depth] = node, token
            depth, parent, node = depth + 1, node, -1
            for child in range(parent + 1, num_nodes):
                if nodes[2 * (first + child) + 1] == parent and nodes[2 * (first + child)] == token:
                    node = child
        results[place] = depth


@nb.njit(cache=True)
def name_likeliest(
    num_rows: int, results: IntArray, values: NDArray[np.float32], first: int, num_top: int, num_tokens: int
) -> None:
    """As `rank`, of tokens that nothing speaks for."""
    for row in range(num_rows):
        place = first + row * (1 + 2 * num_top)
        values[place] = 4.0
        for rank in range(num_top):
            results[place + 1 + rank] = (row + rank * 7) % num_tokens
            values[place + 1 + num_top + rank] = -np.float32(rank)
