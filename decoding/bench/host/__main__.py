"""Microseconds of host a step, plain and drafted, by requests and by phase: `python -m decoding.bench.host`.

The device answers at once, so all that is measured is what the host does: planning, drafting, packing, launching,
reading, committing and learning. Runs on any machine, on one core.
"""

from __future__ import annotations

import gc
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import torch

from decoding.bench.host.device import Answers
from decoding.bench.host.engine import engine_over, request_of
from decoding.bench.machine import describe_machine
from decoding.bench.options import numbers, positive
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import PHASES
from decoding.engine.engine import Engine

REQUESTS, STEPS, WARM_STEPS = (1, 8, 32, 64, 256), 60, 12
NUM_NODES = 16
NUM_TOKENS = 48  # of which texts are made: few enough that trees have nodes, and that few of them are right
WAYS = {
    "plain": SpeculationParams(method="none"),
    "drafted": SpeculationParams(method="auto", max_nodes=NUM_NODES),
}


class HostStep(NamedTuple):
    """Microseconds of processor time that a step takes, of the clock that its phases take; tokens that it runs. All on
    average."""

    microseconds: float
    phases: dict[str, float]
    rows: float


def main(argv: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m decoding.bench.host", description=__doc__)
    parser.add_argument("--requests", type=numbers, default=REQUESTS, help="requests at a time (default: %(default)s)")
    parser.add_argument("--steps", type=positive, default=STEPS, help="steps of each (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="end with a line of microseconds by requests")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    print(describe_machine())  # noqa: T201
    names = "  ".join(f"{name:>11}" for name in PHASES)
    print(f"{'requests':>16} {'us a step':>10} {'each':>7} {'rows':>6}  {names}")  # noqa: T201
    found: dict[str, dict[str, float]] = {}
    for way, speculation in WAYS.items():
        found[way] = {}
        for count in options.requests:
            step = measure(count, speculation, options.steps)
            found[way][str(count)] = round(step.microseconds, 1)
            print(line_of(f"{count} {way}", count, step), flush=True)  # noqa: T201
    if options.json:
        print(msgspec.json.encode(found).decode())  # noqa: T201
    return 0


def line_of(name: str, count: int, step: HostStep) -> str:
    phases = "  ".join(f"{step.phases.get(phase, 0.0):11.0f}" for phase in PHASES)
    return f"{name:>16} {step.microseconds:10.0f} {step.microseconds / count:7.1f} {step.rows:6.0f}  {phases}"


def measure(count: int, speculation: SpeculationParams, num_steps: int) -> HostStep:
    """Of `count` requests that all decode."""
    answers = Answers(NUM_TOKENS)
    engine = engine_over(answers, count)
    for number in range(count):
        engine.add(request_of(number, speculation))
    read_prompts(engine)
    for _ in range(WARM_STEPS):
        engine.step()
    gc.collect()
    gc.freeze()  # as a worker does
    phases, rows, before, started = Counter[str](), 0, answers.seconds, time.thread_time()
    for _ in range(num_steps):
        stats = engine.step().stats
        assert stats is not None, "all requests decode"
        phases.update(stats.phase_seconds)
        rows += stats.rows
    seconds = time.thread_time() - started - (answers.seconds - before)
    gc.unfreeze()
    by_phase = {name: 1e6 * of_phase / num_steps for name, of_phase in phases.items()}
    return HostStep(1e6 * seconds / num_steps, by_phase, rows / num_steps)


def read_prompts(engine: Engine) -> None:
    """Until all decode."""
    is_read = False
    while not is_read:
        stats = engine.step().stats
        assert stats is not None, "somebody reads, or decodes"
        is_read = stats.prefill_rows == 0


if __name__ == "__main__":
    sys.exit(main())
