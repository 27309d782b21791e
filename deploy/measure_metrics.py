"""What metrics cost a step, against what the step takes: `python -m deploy.measure_metrics`.

Counted: in the worker the tally, the step's statistics, the encoding of the report and, as often as the worker reads
them, the engine's gauges; in the server the report's decoding, adding it up, and a scrape every 15 seconds. All is
timed in one run on the bundled model, in place, around real steps. Of the steps the median is shown; of what metrics
cost, the median over blocks of steps of the mean, because the server sums steps up some dozens at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import mean, median
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import numpy as np
from prometheus_client.openmetrics.exposition import generate_latest
from tokenizers import Tokenizer

from decoding.budget import CostCurve
from decoding.checkpoint import BUNDLED_FOLDER
from decoding.config import EngineConfig
from decoding.engine import Engine
from decoding.messages import Batch, StepReport
from decoding.request import Request, SamplingParams, SpeculationParams
from decoding.stats import MethodCounts, StepStats
from decoding.tally import StepTally, count_draft
from decoding.worker import GAUGE_SECONDS
from deploy.load import PROMPTS
from server.metrics import Metrics
from server.totals import KEPT_STEPS

SCRAPE_SECONDS = 15.0
MAX_TOKENS = 120
ROUNDS = 12
NUM_RUNNING = (1, 4)
REPEATS = 200

T = TypeVar("T")


class Stopwatch:
    """Seconds spent in what it is asked to run. Its own cost, two readings of the clock, is counted too."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def run(self, function: Callable[..., T], *arguments: Any) -> T:
        started = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            self.seconds += time.perf_counter() - started


class TimedTally(StepTally):
    """A tally that says what it costs."""

    watch = Stopwatch()

    def end_phase(self, name: str) -> None:
        self.watch.run(super().end_phase, name)

    def add(self, method: str, context: int, num_emitted: int, budget: int, num_drafted: int) -> MethodCounts:
        return self.watch.run(super().add, method, context, num_emitted, budget, num_drafted)

    def stats(self, num_rows: int, num_prefill_rows: int, curve: CostCurve) -> StepStats:
        return self.watch.run(super().stats, num_rows, num_prefill_rows, curve)


def timed_count_draft(*arguments: Any) -> None:
    TimedTally.watch.run(count_draft, *arguments)


def measure(engine: Engine, num_running: int) -> tuple[list[float], list[float], Metrics]:
    """Seconds of each decode step, and what metrics took of it, with so many requests at a time."""
    encoder, decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Batch)
    metrics, watch = Metrics("gosling"), TimedTally.watch
    steps, costs = [], []
    for number in range(ROUNDS):
        for request in range(num_running):
            engine.add(_request(engine, f"{number}-{request}", number + request))
        while engine.has_work:
            watch.seconds = 0.0
            stats = engine.step().stats
            assert stats is not None
            frame = watch.run(encoder.encode, Batch([StepReport(step=stats, engine=None)]))
            for message in watch.run(decoder.decode, frame).messages:
                assert isinstance(message, StepReport)
                watch.run(metrics.on_step, message)
            if stats.prefill_rows == 0:
                steps.append(stats.step_seconds)
                costs.append(watch.seconds)
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


def seconds_of(function: Callable[..., Any], *arguments: Any) -> float:
    """The median of many runs."""
    seconds = []
    for _ in range(REPEATS):
        watch = Stopwatch()
        watch.run(function, *arguments)
        seconds.append(watch.seconds)
    return median(seconds)


def main() -> int:
    engine = Engine.load(EngineConfig())
    with patch("decoding.engine.StepTally", TimedTally), patch("decoding.engine.count_draft", timed_count_draft):
        for num_running in NUM_RUNNING:
            steps, costs, metrics = measure(engine, num_running)
            blocks = range(0, len(costs) - KEPT_STEPS + 1, KEPT_STEPS)
            step, cost = median(steps), median(mean(costs[start : start + KEPT_STEPS]) for start in blocks)
            gauges, scrape = seconds_of(engine.stats), seconds_of(generate_latest, metrics.registry)
            share = cost / step + gauges / GAUGE_SECONDS + scrape / SCRAPE_SECONDS
            sys.stdout.write(
                f"{num_running} running: {len(steps)} steps, median {1e6 * step:.0f} µs; metrics {1e6 * cost:.0f} µs a "
                f"step, gauges {1e6 * gauges:.0f} µs a reading, {1e3 * scrape:.2f} ms a scrape: "
                f"{100 * share:.2f} % of a step\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
