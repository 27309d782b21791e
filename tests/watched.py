"""An engine whose tokens are drawn as on a device, and which notes what is launched and collected when.

The sampler is the device's; kernels that every step launches are the host's own, since interpreted they take long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from decoding.cache.batch import StepBatch
from decoding.engine.engine import Engine
from decoding.errors import BrokenLogits
from decoding.model.device.runner import Forward, Runner
from decoding.sampling.asked import Asked, Drawn
from decoding.sampling.cpu_sampler import draw_token
from decoding.sampling.device.device_sampler import DeviceDrawing, DeviceSampler
from decoding.sampling.device.launch import Kernels, triton_kernels
from decoding.sampling.device.plan import JOB_WORDS, POSITION, SEED, SOURCE, TEMPERATURE, TOP_K, TOP_P
from decoding.sampling.law import Law


@dataclass
class Watched:
    """A runner and a sampler that note what is launched, of how many rows, and what is collected."""

    runner: Runner
    sampler: DeviceSampler
    log: list[str] = field(default_factory=list)
    broken_at: int = 10**6  # a position in whose logits, and in those after it, one is not finite

    def launch(self, batch: StepBatch, /) -> Forward:
        self.log.append("planned" if batch.drawn_B is None else "ahead")
        forward = self.runner.launch(batch)
        is_broken = torch.from_numpy(batch.positions_M[batch.logit_rows_R] >= self.broken_at)
        with torch.inference_mode():
            forward.logits_RV[is_broken, 3] = float("nan")
        return forward

    @property
    def num_ahead(self) -> int:
        return self.log.count("ahead")


@dataclass
class WatchedSampler:
    watched: Watched

    def launch(self, logits_RV: torch.Tensor, asked: Sequence[Asked], /) -> WatchedDrawing:
        return WatchedDrawing(self.watched, self.watched.sampler.launch(logits_RV, asked))

    def warm_up(self, logits_RV: torch.Tensor, /) -> None:
        self.watched.sampler.warm_up(logits_RV)


@dataclass
class WatchedDrawing:
    watched: Watched
    drawing: DeviceDrawing
    is_collected: bool = False

    @property
    def roots(self) -> WatchedDrawing | None:
        return self if self.drawing.roots is not None else None

    @property
    def tokens_B(self) -> torch.Tensor:
        return self.drawing.tokens_B

    def follow(self, logits_RV: torch.Tensor, places_B: NDArray[np.int64], /) -> WatchedDrawing:
        return WatchedDrawing(self.watched, self.drawing.follow(logits_RV, places_B))

    def collect(self, place: int, /) -> Drawn:
        if not self.is_collected:
            self.watched.log.append("collected")
            self.is_collected = True
        return self.drawing.collect(place)


class QuickKernels:
    """The device's kernels, of which those that edit rows and score tokens are Triton's."""

    def __init__(self) -> None:
        self._interpreted = triton_kernels()

    def all(self) -> Kernels:
        quick = {name: Launch(getattr(self, f"_{name}")) for name in ("scan", "draw", "walk", "rank")}
        return self._interpreted._replace(**quick)

    def _scan(self, _grid: tuple[int, ...], *arguments: Any) -> None:
        self._logits, _, self._jobs = (each.numpy() for each in arguments[:3])

    def _rank(self, grid: tuple[int, ...], *arguments: Any) -> None:
        ranked, results, values = (arguments[place].numpy() for place in (0, 4, 5))
        first, num_top = arguments[6], arguments[8]
        for place, job in enumerate(ranked[: grid[0]].tolist()):
            row = self._logits[self._jobs.reshape(-1, JOB_WORDS)[job, SOURCE]]
            ids, at = np.argsort(-row, kind="stable")[:num_top], first + place * (1 + 2 * num_top)
            values[at] = np.exp(row - row[ids[0]]).sum()
            results[at + 1 : at + 1 + num_top], values[at + 1 + num_top : at + 1 + 2 * num_top] = ids, row[ids]

    def _draw(self, grid: tuple[int, ...], *arguments: Any) -> None:
        logits, edited, jobs, numbers = (each.numpy() for each in arguments[:4])
        drawn = arguments[7].numpy()
        for job in range(grid[0]):
            words, reals = (each.reshape(-1, JOB_WORDS)[job] for each in (jobs, numbers))
            source, seed = words[SOURCE], words[SEED : SEED + 1].view(np.uint64)[0]
            row = logits[source] if source >= 0 else edited[-1 - source]
            law = Law(float(reals[TEMPERATURE]), int(words[TOP_K]), float(reals[TOP_P]), 0.0, seed)
            try:
                drawn[job] = draw_token(row, law, int(words[POSITION]))
            except BrokenLogits:
                drawn[job] = -1

    def _walk(self, grid: tuple[int, ...], *arguments: Any) -> None:
        trees, nodes, drawn, results = (each.numpy() for each in arguments[:4])
        for first, num_nodes, path in trees.reshape(-1, 3)[: grid[0]].tolist():
            own = nodes.reshape(-1, 2)[first : first + num_nodes].tolist()
            node, depth = 0, 0
            while node >= 0:
                token = int(drawn[first + node])
                results[path + 1 + depth], results[path + 1 + num_nodes + depth] = node, token
                node, depth = own.index([token, node]) if token >= 0 and [token, node] in own else -1, depth + 1
            results[path] = depth


@dataclass
class Launch:
    """Launched as one of Triton's kernels."""

    act: Callable[..., None]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return partial(self.act, grid)


def watch(engine: Engine) -> tuple[Engine, Watched]:
    watched = Watched(engine._runner, DeviceSampler(kernels=QuickKernels().all()))
    engine._runner, engine.sampler = watched, WatchedSampler(watched)
    return engine, watched
