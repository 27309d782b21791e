"""The target that all contenders draft for, loaded anew for each of them, and its prompts.

Owns how engines are made and what a figure's setting is. Knows nothing of tables.
Invariant: engines differ only in the contender.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from decoding.bench.contestant import Reply
from decoding.bench.heads.book import Setting, Size
from decoding.bench.heads.contender import Contender, digest
from decoding.bench.workload import Workload
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve

NUM_SLOTS = 4096  # enough for the one request that an engine runs at a time
MOST_ROWS = 1024  # tokens of a step: enough to run every prompt in one chunk on any machine


@dataclass(frozen=True, slots=True)
class Target:
    """name: the bundled model's, or a folder. digest: of its files. numbers: dtype, attention and device. threads: None
    chooses by measuring."""

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
        """A new engine with its own target, so that no other contender's hooks are on it. None: it does not draft."""
        return load_engine(self.config(str(contender.folder) if contender else "none"))

    def size(self, contender: Contender, engine: Engine) -> Size:
        """The contender's size. engine: loaded with it."""
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
    """The bundled model, or a folder's. Raises ConfigError if it cannot run on this machine."""
    config, folder = resolve(EngineConfig(model=name))
    numbers = f"{config.dtype}, {config.attention}, {config.device}"
    return Target(name, Path(folder), digest(Path(folder)), numbers, threads)


def cycled(workload: Workload, num_rounds: int) -> Workload:
    """The workload with one prompt for each round; prompts repeat if there are too few."""
    return replace(workload, prompts=tuple(islice(cycle(workload.prompts), num_rounds)))


def digest_of_replies(replies: Sequence[Reply]) -> str:
    """16 hex digits that hash all tokens."""
    return _digest([reply.tokens for reply in replies])


def _digest(texts: Sequence[NDArray[np.int32]]) -> str:
    found = hashlib.sha256()
    for tokens in texts:
        found.update(f"{len(tokens)} ".encode() + tokens.astype("<i4").tobytes())
    return found.hexdigest()[:16]
