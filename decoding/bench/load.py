"""Throughput with several requests at once, in process: the engine alone, no server.

Owns the closed loop that keeps a fixed number of requests running. Invariant: every method is given the
same requests in the same order, and must give the same tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from decoding.bench.workload import Workload
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine

CONCURRENCY = (1, 4, 8, 16, 24)
MIN_REQUESTS = 8  # of each method in each round, where there are so many prompts; else twice the concurrency
MAX_TOKENS = 128
METHODS = {
    "none": SpeculationParams(method="none", max_nodes=0),
    "auto": SpeculationParams(method="auto"),
    "spine 8": SpeculationParams(method="spine", max_nodes=8),
}


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One method at one concurrency. ratio: median over rounds of tokens per second over `none`'s.

    nodes_per_step: drafted nodes per request and step.
    """

    concurrency: int
    method: str
    tokens: int
    tokens_per_second: float
    ratio: float
    tau: float
    nodes_per_step: float
    is_same: bool


class Run(msgspec.Struct, kw_only=True):
    """Sums of one closed loop. replies: tokens by prompt number."""

    seconds: float
    replies: dict[int, NDArray[np.int32]]
    forwards: int = 0
    drafted: int = 0

    @property
    def tokens(self) -> int:
        return sum(map(len, self.replies.values()))


def measure_load(
    engine: Engine,
    workloads: Sequence[Workload],
    concurrency: int,
    rounds: int = 2,
    on_answer: Callable[[], None] = lambda: None,
) -> list[LoadResult]:
    """Every method at one concurrency, in interleaved rounds over the mixed prompts of `workloads`."""
    prompts = [prompt for workload in workloads for prompt in workload.prompts]
    Random(0).shuffle(prompts)
    while len(prompts) < concurrency:
        prompts *= 2
    prompts = prompts[: max(MIN_REQUESTS, 2 * concurrency)]
    max_tokens = min(MAX_TOKENS, *(workload.max_tokens for workload in workloads))
    runs: dict[str, list[Run]] = {method: [] for method in METHODS}
    for number in range(rounds):
        for method, speculation in METHODS.items():
            session = f"load-{concurrency}-{number}-{method}"
            requests = [
                Request(
                    id=f"{session}-{place}",
                    prompt=prompt,
                    sampling=SamplingParams(max_tokens=max_tokens, temperature=0.0),
                    speculation=speculation,
                    eos_token_ids=engine.model.eos_token_ids,
                    session_id=session,
                )
                for place, prompt in enumerate(prompts)
            ]
            runs[method].append(_closed_loop(engine, requests, concurrency))
            on_answer()
    return [_result(concurrency, method, runs) for method in METHODS]


def _closed_loop(engine: Engine, requests: Sequence[Request], concurrency: int) -> Run:
    """Keep `concurrency` requests in the engine until all have ended."""
    run = Run(seconds=0.0, replies={})
    waiting = iter(requests)
    num_open = 0
    started = time.perf_counter()
    while len(run.replies) < len(requests):
        while num_open < concurrency and (request := next(waiting, None)) is not None:
            engine.add(request)
            num_open += 1
        for retired in engine.step().retired:
            num_open -= 1
            run.forwards += retired.stats.target_forwards
            run.drafted += retired.stats.counts.drafted
            place = int(retired.request_id.rpartition("-")[2])
            run.replies[place] = requests[place].output.copy()
    run.seconds = time.perf_counter() - started
    return run


def _result(concurrency: int, method: str, runs: dict[str, list[Run]]) -> LoadResult:
    mine, plain = runs[method], runs["none"]
    tokens, forwards = sum(run.tokens for run in mine), sum(run.forwards for run in mine)
    pairs = list(zip(mine, plain, strict=True))
    return LoadResult(
        concurrency=concurrency,
        method=method,
        tokens=tokens,
        tokens_per_second=tokens / sum(run.seconds for run in mine),
        ratio=median((one.tokens / one.seconds) / (other.tokens / other.seconds) for one, other in pairs),
        tau=tokens / forwards,
        nodes_per_step=sum(run.drafted for run in mine) / forwards,
        is_same=all(
            np.array_equal(one.replies[place], other.replies[place]) for one, other in pairs for place in one.replies
        ),
    )


def render_load(results: Sequence[LoadResult]) -> str:
    """A Markdown table, a row for each concurrency and method."""
    lines = [
        "| requests at once | method | tokens/s | × none | τ | nodes a step |",
        "| --: | --- | --: | --: | --: | --: |",
    ]
    for result in results:
        name = result.method if result.is_same else f"{result.method} (**tokens differ**)"
        lines.append(
            f"| {result.concurrency} | {name} | {result.tokens_per_second:.0f} | {result.ratio:.2f} "
            f"| {result.tau:.2f} | {result.nodes_per_step:.1f} |"
        )
    return "\n".join(lines)
