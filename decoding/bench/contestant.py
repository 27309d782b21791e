"""Whatever can answer a prompt and be timed: our engine under one way of drafting.

Owns the record of one timed reply. Knows nothing of tables; `generate` has transformers' side.
Invariant: a reply's seconds run from the prompt's hand-over to its last token, prefill included.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.step_result import StepResult
from decoding.drafting.registry import StartDrafter
from decoding.engine.engine import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One prompt to answer: int32 [p], at most `max_tokens` new tokens, past end tokens or not, noise from `seed`.

    prediction: int32, what the reply is expected to be, if anything.
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

    forwards: target forwards that verified a root, so prefill chunks before the last do not count and
    plain decoding has one per token. drafted, accepted: nodes. first_token_seconds: of `seconds`, those before the
    first token. draft_seconds, target_seconds: of the steps after the prompt's last, in drafting (a draft model's
    forwards and the growing of trees) and in the target's forwards. cpu_seconds: of all threads of this process.
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
    """Answers tasks one at a time. `label` and `budget` name its row; `is_ours`: its tokens must equal `none`'s."""

    label: str
    budget: int | None
    is_ours: bool

    def answer(self, task: Task) -> Reply:
        """Run one task to its end and time it."""


_NUMBERS = count()


def step(engine: Engine) -> StepResult:
    """One step. Raises RuntimeError where a request of it broke, whose end a benchmark would wait for in vain."""
    result = engine.step()
    for broken in result.broken:
        raise RuntimeError(f"{broken.request_id}: {broken.sentence}")
    return result


def request_of(task: Task, request_id: str, session_id: str, speculation: SpeculationParams, engine: Engine) -> Request:
    """The task as our engine takes it."""
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
    """Our engine with one method, in a session of its own: it learns from its own requests alone.

    is_cold: a fresh session for every prompt. start_drafter: a drafter that is not in the registry.
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
        self._number = next(_NUMBERS)  # its sessions are nobody else's, before or after
        self._session = 0
        self._num_answers = 0

    def forget(self) -> None:
        """Go on in a fresh session."""
        self._session += 1

    def answer(self, task: Task) -> Reply:
        if self._is_cold:
            self.forget()
        self._num_answers += 1
        request_id, session = f"{self._number}-{self._num_answers}", f"{self._number}-{self._session}"
        request = request_of(task, request_id, session, self._speculation, self._engine)
        started, cpu_started = time.perf_counter(), time.process_time()
        self._engine.add(request, self._start_drafter)
        retired = None
        draft_seconds = target_seconds = 0.0
        while retired is None:
            result = step(self._engine)
            for ended in result.retired:
                retired = ended
            if result.stats is not None and result.stats.prefill_rows == 0:
                phases = result.stats.phase_seconds
                draft_seconds += phases["draft_model"] + phases["draft"]
                target_seconds += phases["forward"]
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
        counts = retired.stats.counts
        return Reply(
            tokens=request.output.copy(),
            seconds=seconds,
            forwards=retired.stats.target_forwards,
            drafted=counts.drafted,
            accepted=counts.accepted,
            first_token_seconds=retired.stats.time_to_first_token,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            cpu_seconds=cpu_seconds,
        )
