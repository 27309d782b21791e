"""Measures the phases of a decoding step over one workload with one way of drafting.

The engine names and times the phases. Steps with prompt tokens are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from decoding.bench.contestant import step
from decoding.bench.variant import Variant
from decoding.bench.workload import Workload
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import StepStats
from decoding.engine.engine import Engine


class PhaseTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Microseconds per decode step: the mean, and the 10th percentile, which a busy machine disturbs less."""

    label: str
    budget: int | None
    steps: int
    rows: float
    mean: dict[str, float]
    quick: dict[str, float]


def profile(engine: Engine, workload: Workload, variant: Variant, temperature: float) -> PhaseTimes:
    """Answer the workload once and collect the engine's own phase times."""
    steps: list[StepStats] = []
    for number, prompt in enumerate(workload.prompts):
        engine.add(
            Request(
                id=f"profile-{number}",
                prompt=prompt,
                sampling=SamplingParams(max_tokens=workload.max_tokens, temperature=temperature, seed=number),
                speculation=variant.speculation,
                eos_token_ids=engine.model.eos_token_ids,
                session_id=f"profile-{variant.label}-{variant.speculation.max_nodes}",
            )
        )
        while engine.has_work:
            stats = step(engine).stats
            if stats is not None and stats.prefill_rows == 0:
                steps.append(stats)
    columns = {name: [step.phase_seconds[name] for step in steps] for name in steps[0].phase_seconds}
    columns["step"] = [step.step_seconds for step in steps]
    return PhaseTimes(
        label=variant.label,
        budget=variant.speculation.max_nodes,
        steps=len(steps),
        rows=float(np.mean([step.rows for step in steps])),
        mean={name: 1e6 * float(np.mean(values)) for name, values in columns.items()},
        quick={name: 1e6 * float(np.quantile(values, 0.1)) for name, values in columns.items()},
    )


def render_profile(results: Sequence[PhaseTimes]) -> str:
    """A Markdown table: each phase as mean / 10th percentile."""
    names = list(results[0].mean)
    lines = [
        f"| method | budget | steps | rows | {' | '.join(names)} |",
        f"| --- |{' --: |' * (3 + len(names))}",
    ]
    for result in results:
        cells = [f"{result.mean[name]:.0f} / {result.quick[name]:.0f}" for name in names]
        budget = "" if result.budget is None else str(result.budget)
        lines.append(f"| {result.label} | {budget} | {result.steps} | {result.rows:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)
