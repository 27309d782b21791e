"""The first requests of an engine, nobody's: every kind of step runs once, so that nothing is compiled later.

Owns what they are, and what their steps tell of the seconds beside the forwards. Knows an engine by what it is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Protocol

import numpy as np

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import StepStats
from decoding.core.step_result import StepResult
from decoding.costs.curve import CostCurve
from decoding.engine.limits import Limits
from decoding.engine.step_costs import Beside
from decoding.model.target_model import TargetModel

NUM_TOKENS = 12  # of prompts and replies
MEASURED_NODES = (2, 8)  # drafted in steps whose seconds are taken
MEASURED_ROUNDS = (1, 2)  # of the draft model, likewise
NUM_MEASURED = 2  # requests of each
NUM_TOGETHER = 4  # of them that run at once


class Stepping(Protocol):
    """What is asked of an engine."""

    limits: Limits

    @property
    def has_work(self) -> bool: ...

    def add(self, request: Request) -> None: ...

    def step(self) -> StepResult: ...


def run_first(engine: Stepping, model: TargetModel, has_draft_model: bool) -> None:
    """Run every kind of step."""
    for request in _requests(model, _kinds(has_draft_model)):
        _run(engine, [request])


def measure_beside(
    engine: Stepping, model: TargetModel, most_nodes: int, curve: CostCurve, draft_curve: CostCurve | None
) -> Beside:
    """What steps take beside what their forwards should, by medians. most_nodes: that a request may ask for; curve,
    draft_curve: of forwards alone, of the draft model's where there is one."""
    plain = SpeculationParams(method="none")
    most = min(NUM_TOGETHER, engine.limits.max_open)
    runs = [_beside(engine, model, curve, plain, at_once) for at_once in (1, most)]
    request, always = _line([(stats.rows, seconds) for run in runs for stats, seconds in run])
    stores = frozenset(("context", "adjacency", "ngram"))
    drafted = [
        (stats.rows - 1, seconds - request - always)
        for nodes in MEASURED_NODES
        if nodes <= most_nodes
        for stats, seconds in _beside(engine, model, curve, SpeculationParams(max_nodes=nodes, sources=stores))
        if stats.rows > 1
    ]
    row, drafting = _line(drafted)
    if draft_curve is None or most_nodes == 0:
        return Beside(always, drafting, row, request=request)
    grown = [
        (rounds, stats.phase_seconds["draft"], stats.phase_seconds["draft_model"] / rounds)
        for rounds in MEASURED_ROUNDS
        for stats, _ in _beside(
            engine,
            model,
            curve,
            SpeculationParams(method="dynamic", max_nodes=min(most_nodes, rounds), max_depth=rounds),
        )
        if stats.rows > 1
    ]
    own, _ = _line([(rounds, seconds) for rounds, seconds, _ in grown])
    cold = median([seconds for *_, seconds in grown] or [0.0]) - draft_curve.step_seconds([1], [NUM_TOKENS])
    return Beside(always, drafting, row, own, max(0.0, cold), request)


def _run(engine: Stepping, requests: Iterable[Request]) -> list[StepStats]:
    """Of their steps after the prompts."""
    for request in requests:
        engine.add(request)
    found = []
    while engine.has_work:
        stats = engine.step().stats
        if stats is not None and stats.prefill_rows == 0:
            found.append(stats)
    return found


def _beside(
    engine: Stepping, model: TargetModel, curve: CostCurve, speculation: SpeculationParams, at_once: int = 1
) -> list[tuple[StepStats, float]]:
    """The steps of greedy requests, so many at once, each with its seconds beside the draft model's forwards and beyond
    what the curve says of the target's."""
    kinds = [(speculation, 0.0, None)] * at_once
    return [
        (
            stats,
            stats.step_seconds - stats.phase_seconds["draft_model"] - curve.step_seconds([stats.rows], [NUM_TOKENS]),
        )
        for _ in range(NUM_MEASURED)
        for stats in _run(engine, _requests(model, kinds))
    ]


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and height of the line through the medians of the smaller and the larger half, neither below 0."""
    if len({count for count, _ in points}) < 2:
        return 0.0, max(0.0, median(seconds for _, seconds in points)) if points else 0.0
    points = sorted(points)
    halves = points[: len(points) // 2], points[len(points) // 2 :]
    (few, first), (many, last) = (
        (median(count for count, _ in half), median(seconds for _, seconds in half)) for half in halves
    )
    slope = max(0.0, (last - first) / (many - few)) if many > few else 0.0
    return slope, max(0.0, first - slope * few)


def _kinds(has_draft_model: bool) -> list[tuple[SpeculationParams, float, int | None]]:
    """How to draft, at what temperature, and whether log probabilities are wanted."""
    methods = ("auto", "fixed", "eagle", "none") if has_draft_model else ("auto", "none")
    found = [(SpeculationParams(method=method), temperature, None) for method in methods for temperature in (0.0, 1.0)]
    return [*found, (SpeculationParams(method="stand", verification="rejection"), 1.0, 0)]


def _requests(model: TargetModel, kinds: Sequence[tuple[SpeculationParams, float, int | None]]) -> Iterator[Request]:
    num_tokens = min(NUM_TOKENS, model.max_model_len // 2)
    prompt = np.arange(num_tokens, dtype=np.int32) % model.vocab_size
    for number, (speculation, temperature, logprobs) in enumerate(kinds):
        yield Request(
            id=str(number),
            prompt=prompt,
            sampling=SamplingParams(
                max_tokens=num_tokens, temperature=temperature, top_p=0.9, ignore_eos=True, logprobs=logprobs
            ),
            speculation=speculation,
        )
