"""Writes the calculated part of the page on GPUs, on any machine: `python -m decoding.bench.gpu.calculated`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from decoding.bench.gpu.cost_model import (
    A100_40,
    H100,
    H100_NVL,
    H200,
    LAUNCHES,
    LLAMA_8B,
    QWEN3,
    Gpu,
    Load,
    ModelShape,
    bound_seconds,
    step_seconds,
    tokens_a_second,
)
from decoding.bench.tables.report import write_section
from decoding.bench.tables.table import table

PAGE = Path("docs/gpu.md")
CONTEXT = 1024
LOADS = {  # tokens are nearly free while matrix products are bound by reading weights: up to some 200 in all
    "1 plain": Load(1, CONTEXT),
    "1 drafted, 64 rows, 3 tokens a step": Load(1, CONTEXT, 64, 3.0),
    "8 plain": Load(8, CONTEXT),
    "8 drafted, 16 rows, 2.5 tokens a step": Load(8, CONTEXT, 16, 2.5),
    "32 plain": Load(32, CONTEXT),
    "32 drafted, 6 rows, 1.8 tokens a step": Load(32, CONTEXT, 6, 1.8),
}
SWEEP, ISSUE = "johnmusgrave.com/p/vllm-throughput-latency-sweep-on", "github.com/vllm-project/vllm/issues/17788"


class Published(NamedTuple):
    """Tokens a second of vLLM that others have measured."""

    what: str
    model: ModelShape
    gpu: Gpu
    load: Load
    measured: float
    source: str


PUBLISHED = (
    Published("one request", LLAMA_8B, A100_40, Load(1, 1088), 75.0, f"[vLLM 0.23](https://{SWEEP})"),
    Published("32 requests, prompts included", QWEN3[2], H100_NVL, Load(32, 300), 654.0, f"[0.8.5](https://{ISSUE})"),
)


def step_table() -> str:
    """A table of the milliseconds of a plain step at batch 1, by how its operations are launched."""
    plain = LOADS["1 plain"]
    rows = [
        [f"{model.name}, {gpu.name}"]
        + [f"{1000 * bound_seconds(model, gpu, plain):.2f}"]
        + [f"{1000 * step_seconds(model, gpu, plain, way):.2f}" for way in LAUNCHES]
        for model in QWEN3
        for gpu in (H100, H200)
    ]
    return table(["Qwen3, ms a step", "bound", *LAUNCHES], rows)


def load_table() -> str:
    """A table of the tokens a second of fused, captured forwards, for all requests together."""
    places = [(model, gpu) for model in QWEN3 for gpu in (H100, H200)]
    rows = [
        [name, *(f"{tokens_a_second(model, gpu, load, 'fused'):,.0f}" for model, gpu in places)]
        for name, load in LOADS.items()
    ]
    return table(["requests", *(f"{model.name}, {gpu.name}" for model, gpu in places)], rows)


def published_table() -> str:
    """A table that compares the calculation with what others have measured with vLLM."""
    rows = [
        [
            f"{model.name}, {gpu.name}, {what}",
            f"{load.sequences / bound_seconds(model, gpu, load):,.0f}",
            f"{tokens_a_second(model, gpu, load, 'fused'):,.0f}",
            f"{measured:,.0f}",
            source,
        ]
        for what, model, gpu, load, measured, source in PUBLISHED
    ]
    return table(["tokens a second", "bound", "calculated, fused", "published", "by"], rows)


def render() -> str:
    """All three tables."""
    return "\n\n".join((step_table(), load_table(), published_table()))


if __name__ == "__main__":
    write_section(PAGE, "# GPUs\n", "calculated", render())
