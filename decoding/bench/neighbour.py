"""Measures plain steps beside a busy process: `python -m decoding.bench.neighbour`.

Owns the busy process, which spins on one core while the busy columns are measured. Reports means, since steps that wait
for a thread without a core are rare and long. Knows nothing of how threads are chosen.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
from rich.console import Console

from decoding.bench.contestant import step
from decoding.bench.machine import describe_machine
from decoding.bench.shapes import GPT2_SIZED
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.model.target_model import TargetModel
from decoding.model.threads import choose_threads

PROMPT_LEN, REPLY_LEN = 16, 128


class NeighbourResult(msgspec.Struct, frozen=True, kw_only=True):
    """Mean milliseconds of a plain step: alone, beside the busy process, and in the second half of that time.

    threads: the numbers that were chosen alone and beside the busy process.
    """

    model: str
    rule: str
    threads: tuple[int, int]
    quiet: float
    busy: float
    settled: float


def measure_neighbour(model: str, rule: str, engine: Engine, seconds: float) -> NeighbourResult:
    """Run plain steps for `seconds`, then as long beside a busy process."""
    _plain_steps(engine, 0.1)
    quiet, quiet_threads = np.mean(_plain_steps(engine, seconds)), engine.model.threads.chosen
    with _busy_process():
        busy = _plain_steps(engine, seconds / 2)
        settled = _plain_steps(engine, seconds / 2)
    return NeighbourResult(
        model=model,
        rule=rule,
        threads=(quiet_threads, engine.model.threads.chosen),
        quiet=1000 * float(quiet),
        busy=1000 * float(np.mean(busy + settled)),
        settled=1000 * float(np.mean(settled)),
    )


@contextmanager
def _busy_process() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _plain_steps(engine: Engine, seconds: float) -> list[float]:
    """Run plain steps for `seconds`; the seconds of each."""
    found: list[float] = []
    while sum(found) < seconds:
        engine.add(
            Request(
                id="plain",
                prompt=np.arange(3, 3 + PROMPT_LEN, dtype=np.int32),
                sampling=SamplingParams(max_tokens=REPLY_LEN, temperature=0.0, ignore_eos=True),
                speculation=SpeculationParams(method="none", max_nodes=0),
            )
        )
        while engine.has_work:
            stats = step(engine).stats
            if stats is not None and stats.prefill_rows == 0:
                found.append(stats.step_seconds)
    return found


def render_neighbour(results: Sequence[NeighbourResult]) -> str:
    """A Markdown table."""
    lines = [
        "| model | threads | quiet, ms | beside, ms | second half, ms | ÷ quiet | threads quiet, beside |",
        "| --- | --- | --: | --: | --: | --: | --- |",
    ]
    for each in results:
        figures = " | ".join(f"{value:.2f}" for value in (each.quiet, each.busy, each.settled))
        lines.append(
            f"| {each.model} | {each.rule} | {figures} | {each.settled / each.quiet:.2f} "
            f"| {each.threads[0]}, {each.threads[1]} |"
        )
    return "\n".join(lines)


def _gosling(threads: int | None) -> Engine:
    return load_engine(EngineConfig(threads=threads))


def _shape(threads: int | None) -> Engine:
    config = EngineConfig(max_model_len=1024, threads=threads)
    return start_engine(TargetModel.from_model(GPT2_SIZED.build("float32"), config), config)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.neighbour", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of steps, quiet and again beside the busy process")
    chosen, console = parser.parse_args(argv), Console()
    models: dict[str, Callable[[int | None], Engine]] = {"gosling": _gosling, "110M": _shape}
    results = []
    console.print(f"{describe_machine()}; load before: {os.getloadavg()[0]:.1f}", soft_wrap=True)
    for name, load in models.items():
        engine = load(None)
        by_size = choose_threads(None, engine.model.num_parameters, can_change=False).chosen
        for rule, contestant in (("measured", engine), ("by size", load(by_size))):
            results.append(measure_neighbour(name, rule, contestant, chosen.seconds))
            console.print(results[-1], soft_wrap=True)
    console.print(render_neighbour(results), soft_wrap=True, markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
