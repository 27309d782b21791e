"""Whom all contenders draft for: one model, loaded anew for each, and the prompts that it is given.

Owns how engines are made and what a figure's setting is. Knows nothing of tables.
Invariant: engines differ in who drafts, and in nothing else that is chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoding.bench.contestant import Reply, Task
from decoding.bench.heads.book import Setting, Size
from decoding.bench.heads.contender import Contender, digest
from decoding.bench.workload import Workload
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.model.checkpoint import resolve

NUM_SLOTS = 4096  # of each engine: one request at a time
MOST_ROWS = 1024  # of a step, so that prompts are run whole, however quick the machine


@dataclass(frozen=True, slots=True)
class Target:
    """name: of the bundled model, or a folder. digest: of its files; numbers: dtype, attention and device. threads:
    None measures."""

    name: str
    folder: Path
    digest: str
    numbers: str
    threads: int | None

    def config(self, draft_model: str) -> EngineConfig:
        """draft_model: a folder, or "none"."""
        return EngineConfig(
            prefix_cache=False,
            model=self.name,
            draft_model=draft_model,
            threads=self.threads,
            kv_slots=NUM_SLOTS,
            max_batch_rows=MOST_ROWS,
        )

    def load(self, contender: Contender | None) -> Engine:
        """An engine with a target of its own, so that no other contender's hooks are on it; None drafts nothing."""
        return Engine.load(self.config(str(contender.folder) if contender else "none"))

    def size(self, contender: Contender, engine: Engine) -> Size:
        """What a contender takes in an engine that was loaded with it."""
        assert engine.draft_model is not None, contender
        model = engine.draft_model.model
        return Size(
            contender=contender.digest,
            target=self.digest,
            numbers=self.numbers,
            parameters=model.num_parameters,
            weight_bytes=model.num_bytes,
            slot_bytes=model.bytes_per_slot,
        )

    def setting(self, workload: Workload, temperature: float, way: str, machine: str = "") -> Setting:
        prompts = _digest(workload.prompts)
        return Setting(
            target=self.digest,
            numbers=self.numbers,
            workload=workload.name,
            temperature=temperature,
            prompts=prompts,
            num_prompts=len(workload.prompts),
            max_tokens=workload.max_tokens,
            way=way,
            machine=machine,
        )


def find_target(name: str, threads: int | None) -> Target:
    """The bundled model or that of a folder. Raises ConfigError for what is not to be had on this machine."""
    config, folder = resolve(EngineConfig(model=name))
    numbers = f"{config.dtype}, {config.attention}, {config.device}"
    return Target(name, Path(folder), digest(Path(folder)), numbers, threads)


def in_rounds(workload: Workload, num_rounds: int) -> Workload:
    """A prompt for each round, from the first again where there are too few."""
    return replace(workload, prompts=tuple(islice(cycle(workload.prompts), num_rounds)))


def tasks_of(workload: Workload, temperature: float) -> Iterator[Task]:
    """Each prompt with a seed of its own, the same for every contender."""
    for seed, prompt in enumerate(workload.prompts):
        yield Task(prompt=prompt, max_tokens=workload.max_tokens, temperature=temperature, seed=seed)


def digest_of_replies(replies: Sequence[Reply]) -> str:
    """16 hex digits of all tokens."""
    return _digest([reply.tokens for reply in replies])


def _digest(texts: Sequence[NDArray[np.int32]]) -> str:
    found = hashlib.sha256()
    for tokens in texts:
        found.update(f"{len(tokens)} ".encode() + tokens.astype("<i4").tobytes())
    return found.hexdigest()[:16]
