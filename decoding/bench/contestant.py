"""The protocol of a contestant, which answers prompts and is timed, and our engine with one method as a contestant.

Owns the record of one timed reply. Knows nothing of tables; `generate` has transformers' contestant.
Invariant: a reply's seconds run from the submission of the prompt to its last token, prefill included.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.core.events import Failed, Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.registry import StartDrafter
from decoding.engine.engine import Engine
from decoding.engine.step_result import StepResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to answer: int32 [p], with at most `max_tokens` new tokens; seed: of the noise.

    prediction: int32, the expected reply, or empty.
    """

    prompt: NDArray[np.int32]
    max_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool = False
    prediction: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. tokens: int32 [t], the end token included.

    forwards: target forwards that verified a root: plain decoding has one per token, and prefill chunks before the last
    do not count. drafted, accepted: nodes. first_token_seconds: the part of `seconds` before the first token.
    draft_seconds, target_seconds: the parts spent on drafting (draft model and growing trees) and on the target's
    forwards, in steps after the prompt's last. cpu_seconds: of all threads of this process.
    """

    tokens: NDArray[np.int32]
    seconds: float
    forwards: int
    drafted: int = 0
    accepted: int = 0
    first_token_seconds: float = 0.0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    cpu_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return len(self.tokens) / self.seconds


class Contestant(Protocol):
    """Answers tasks one at a time. label, budget: name its row. is_ours: its tokens must equal those of `none`."""

    label: str
    budget: int | None
    is_ours: bool

    def answer(self, task: Task) -> Reply:
        """Run one task to its end and time it."""


_NUMBERS = count()


def step(engine: Engine) -> StepResult:
    """Run one step. Raises RuntimeError if a request broke, since a benchmark would wait forever for its end."""
    result = engine.step()
    for failed in result.of(Failed):
        raise RuntimeError(f"{failed.request_id}: {failed.message}")
    return result


def request_of(task: Task, request_id: str, session_id: str, speculation: SpeculationParams, engine: Engine) -> Request:
    """The task as a request to our engine."""
    return Request(
        id=request_id,
        prompt=task.prompt,
        sampling=SamplingParams(
            max_tokens=task.max_tokens,
            temperature=task.temperature,
            seed=task.seed,
            ignore_eos=task.ignore_eos,
        ),
        speculation=speculation,
        eos_token_ids=engine.model.eos_token_ids,
        session_id=session_id,
        prediction=task.prediction,
    )


class EngineContestant:
    """Our engine with one method, in a session that learns from this contestant's requests only.

    is_cold: start an empty session for every prompt. start_drafter: makes a drafter that is not in the registry.
    """

    is_ours = True

    def __init__(
        self,
        engine: Engine,
        label: str,
        speculation: SpeculationParams,
        is_cold: bool = False,
        start_drafter: StartDrafter | None = None,
    ) -> None:
        self.label = label
        self.budget = speculation.max_nodes if speculation.method not in ("none", "auto") else None
        self._engine = engine
        self._speculation = speculation
        self._is_cold = is_cold
        self._start_drafter = start_drafter
        self._number = next(_NUMBERS)  # no other contestant of this process shares its sessions
        self._session = 0
        self._num_answers = 0

    def forget(self) -> None:
        """Continue in an empty session."""
        self._session += 1

    def answer(self, task: Task) -> Reply:
        if self._is_cold:
            self.forget()
        self._num_answers += 1
        request_id, session = f"{self._number}-{self._num_answers}", f"{self._number}-{self._session}"
        request = request_of(task, request_id, session, self._speculation, self._engine)
        started, cpu_started = time.perf_counter(), time.process_time()
        self._engine.add(request, self._start_drafter)
        finished = None
        draft_seconds = target_seconds = 0.0
        while finished is None:
            result = step(self._engine)
            for ended in result.of(Finished):
                finished = ended
            if result.stats is not None and result.stats.prefill_rows == 0:
                phases = result.stats.phase_seconds
                draft_seconds += phases["draft_model"] + phases["draft"]
                target_seconds += phases["forward"]
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        counts = finished.stats.counts
        return Reply(
            tokens=request.output.copy(),
            seconds=seconds,
            forwards=finished.stats.target_forwards,
            drafted=counts.drafted,
            accepted=counts.accepted,
            first_token_seconds=finished.stats.time_to_first_token,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            cpu_seconds=cpu_seconds,
        )
