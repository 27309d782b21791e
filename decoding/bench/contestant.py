"""Whatever can answer a prompt and be timed: our engine under one way of drafting.

Owns the record of one timed reply. Knows nothing of tables; `generate` has transformers' side.
Invariant: a reply's seconds run from the prompt's hand-over to its last token, prefill included.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.engine import Engine
from decoding.request import Request, SamplingParams, SpeculationParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to answer: int32 [p], at most `max_tokens` new tokens, noise from `seed`."""

    prompt: NDArray[np.int32]
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. tokens: int32 [t], the end token included.

    forwards: target forwards that verified a root, so prefill chunks before the last do not count and
    plain decoding has one per token. drafted, accepted: nodes.
    """

    tokens: NDArray[np.int32]
    seconds: float
    forwards: int
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


class Contestant(Protocol):
    """Answers tasks one at a time. `label` and `budget` name its row; `is_ours`: its tokens must equal `none`'s."""

    label: str
    budget: int | None
    is_ours: bool

    def answer(self, task: Task) -> Reply:
        """Run one task to its end and time it."""


class EngineContestant:
    """Our engine with one method, in a session of its own: it learns from its own requests alone.

    is_cold: a fresh session for every prompt.
    """

    is_ours = True

    def __init__(self, engine: Engine, label: str, speculation: SpeculationParams, is_cold: bool = False) -> None:
        self.label = label
        self.budget = speculation.max_nodes if speculation.method not in ("none", "auto") else None
        self._engine = engine
        self._speculation = speculation
        self._is_cold = is_cold
        self._session = 0
        self._num_answers = 0

    def forget(self) -> None:
        """Go on in a fresh session."""
        self._session += 1

    def answer(self, task: Task) -> Reply:
        if self._is_cold:
            self.forget()
        self._num_answers += 1
        request = Request(
            id=f"{id(self)}-{self._num_answers}",
            prompt=task.prompt,
            sampling=SamplingParams(max_tokens=task.max_tokens, temperature=task.temperature, seed=task.seed),
            speculation=self._speculation,
            eos_token_ids=self._engine.model.eos_token_ids,
            session_id=f"{id(self)}-{self._session}",
        )
        started = time.perf_counter()
        self._engine.add(request)
        retired = None
        while retired is None:
            for ended in self._engine.step().retired:
                retired = ended
        seconds = time.perf_counter() - started
        counts = retired.stats.counts
        return Reply(
            tokens=request.output.copy(),
            seconds=seconds,
            forwards=retired.stats.target_forwards,
            drafted=counts.drafted,
            accepted=counts.accepted,
        )
