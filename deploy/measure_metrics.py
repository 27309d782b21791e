"""Measures what metrics cost a step, beside what the step takes: `python -m deploy.measure_metrics`.

It counts, in the worker: the tally, the step's statistics and the reports with the engine's gauges; in the server:
decoding and adding up the reports, and a scrape every 15 seconds. All is timed in one run on the bundled model, around
real steps. It prints the median step, and the median over reports of the mean cost of their steps.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import numpy as np
from prometheus_client import generate_latest
from tokenizers import Tokenizer

from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import DraftOutcome, StepStats
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.price import CostCurve
from decoding.engine import engine as engine_module
from decoding.engine.engine import Engine
from decoding.engine.scheduler import Reuse
from decoding.engine.sequence_step import SequenceStep
from decoding.engine.start import load_engine
from decoding.engine.tally import StepTally, outcome_of
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.worker.messages import Batch, StepReport
from decoding.worker.worker import REPORT_SECONDS
from deploy.monitoring.load import PROMPTS
from server.metrics.metrics import ModelMetrics

SCRAPE_SECONDS = 15.0
MAX_TOKENS = 120
ROUNDS = 20
NUM_RUNNING = (1, 4)
SCRAPES = 100

T = TypeVar("T")


class Stopwatch:
    """Adds up the seconds of the functions that it runs, less its own cost, which it measures by running nothing."""

    def __init__(self) -> None:
        self._seconds = self._blank_seconds = 0.0
        self._runs = self._blanks = 0

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self._seconds += time.perf_counter() - started
            self._runs += 1

    def run_nothing(self) -> None:
        seconds, runs = self._seconds, self._runs
        self.run(_nothing)
        self._blank_seconds += self._seconds - seconds
        self._blanks += 1
        self._seconds, self._runs = seconds, runs

    def take(self) -> float:
        """The seconds since the last call of `take`."""
        blank = self._blank_seconds / self._blanks if self._blanks else 0.0
        seconds, self._seconds, runs, self._runs = self._seconds, 0.0, self._runs, 0
        return seconds - runs * blank


def _nothing() -> None:
    pass


class TimedTally(StepTally):
    """A tally whose cost is measured."""

    watch = Stopwatch()

    def end_phase(self, name: str) -> None:
        self.watch.run(super().end_phase, name)

    def add(self, step: SequenceStep, context: int, outcome: DraftOutcome | None) -> None:
        self.watch.run(super().add, step, context, outcome)

    def stats(self, num_rows: int, num_prefill_rows: int, reuse: Reuse, curve: CostCurve) -> StepStats:
        return self.watch.run(super().stats, num_rows, num_prefill_rows, reuse, curve)


def timed_outcome_of(tree: DraftTree, verdict: Verdict) -> DraftOutcome | None:
    return TimedTally.watch.run(outcome_of, tree, verdict)


def measure(engine: Engine, num_running: int) -> tuple[list[float], list[float], ModelMetrics]:
    """Run so many requests at a time. Returns the seconds of each decode step, and, for each report, the seconds that
    metrics took of a step."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Batch)
    metrics, watch = ModelMetrics("gosling"), TimedTally.watch
    steps, costs, told = [], [], list[StepStats]()
    last_report = time.monotonic()
    for number in range(ROUNDS):
        for request in range(num_running):
            engine.add(_request(engine, f"{number}-{request}", number + request))
        while engine.has_work:
            stats = engine.step().stats
            assert stats is not None
            watch.run_nothing()
            told.append(stats)
            if stats.prefill_rows == 0:
                steps.append(stats.step_seconds)
            if time.monotonic() - last_report >= REPORT_SECONDS:
                last_report = time.monotonic()
                gauges = watch.run(engine.stats)
                frame = watch.run(encoder.encode, Batch([StepReport(steps=told, engine=gauges)]))
                report = watch.run(decoder.decode, frame).messages[0]
                assert isinstance(report, StepReport)
                watch.run(metrics.on_report, report)
                costs.append(watch.take() / len(told))
                told = []
    return steps, costs, metrics


def _request(engine: Engine, name: str, number: int) -> Request:
    tokenizer = Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))
    prompt = PROMPTS[number % len(PROMPTS)].format(number)
    return Request(
        id=name,
        prompt=np.array(tokenizer.encode(prompt).ids, np.int32),
        sampling=SamplingParams(max_tokens=MAX_TOKENS, temperature=0.0, ignore_eos=True),
        speculation=SpeculationParams(),
        eos_token_ids=engine.model.eos_token_ids,
        session_id="measure",
    )


def scrape_seconds(metrics: ModelMetrics) -> float:
    """The seconds of one scrape, which writes everything in the registry as text."""
    seconds = []
    for _ in range(SCRAPES):
        started = time.perf_counter()
        generate_latest(metrics.registry)
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def main() -> int:
    engine = load_engine(EngineConfig())
    with patch.multiple(engine_module, StepTally=TimedTally, outcome_of=timed_outcome_of):
        for num_running in NUM_RUNNING:
            steps, costs, metrics = measure(engine, num_running)
            step, cost, scrape = median(steps), median(costs), scrape_seconds(metrics)
            share = cost / step + scrape / SCRAPE_SECONDS
            sys.stdout.write(
                f"{num_running} running: {len(steps)} steps, median {1e6 * step:.0f} µs; metrics {1e6 * cost:.0f} µs a "
                f"step, {1e3 * scrape:.2f} ms a scrape: {100 * share:.2f} % of a step\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
