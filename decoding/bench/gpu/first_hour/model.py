"""An 8B of random weights, as it is served: how quick, drafted and plain, where a step's time goes, and whether tokens
are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from decoding.bench.gpu.first_hour.bench import Bench, Served, corrupted, start_of
from decoding.bench.gpu.first_hour.record import Record
from decoding.core.events import Tokens
from decoding.core.request import Request
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.self_test import long_chain

LONGEST = 16_384
PROFILED_STEPS, PROFILED_KERNELS = 10, 24
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
RATES = {  # requests, tokens of their prompts, the share of wrong tokens in predictions
    "1 request at 1k": (1, 1024, 0.3),
    "8 requests at 1k": (8, 1024, 0.3),
    "32 requests at 1k": (32, 1024, 0.3),
    "32 requests at 1k, useless drafts": (32, 1024, 1.0),
    "1 request at 8k": (1, 8192, 0.3),
    "32 requests at 4k": (32, 4096, 0.15),
}


def measure(bench: Bench, record: Record) -> None:
    served = record.measure("start", lambda: Served.of(bench, LONGEST), lambda each: start_of(each.engine, each.told))
    if served is None:
        return
    record.measure("replays, ms", lambda: replays(served))
    for name, load in RATES.items():
        record.measure(name, partial(rate, served, *load))
    record.measure("profile", lambda: profile(served))
    record.measure("compiled after the start", lambda: late_kernels(served))
    record.measure("first tokens, s", lambda: first_tokens(served))
    record.measure("gaps beside a prompt, ms", lambda: gaps_beside_a_prompt(served))
    record.measure("memory", bench.memory)


def replays(served: Served) -> dict[str, float]:
    """Milliseconds of bare forwards by their rows; of those that are not captured, operation by operation."""
    engine, bench, runner = served.engine, served.bench, served.engine._runner
    works: dict[int, Callable[[], object]] = {}
    if isinstance(runner, GraphRunner):
        works |= runner._replays
    else:
        batches = {rows: long_chain(engine.model, rows, 1) for rows in (1, 16, 64)}
        works |= {rows: partial(engine.model.launch, batch) for rows, batch in batches.items()}
    return {str(rows): 1000 * bench.seconds(work) for rows, work in sorted(works.items())}


def rate(served: Served, count: int, context: int, wrong: float) -> dict[str, Any]:
    """Of so many requests, plain, and drafted from predictions of which so many tokens are wrong."""
    bench, vocab_size = served.bench, served.engine.model.vocab_size
    num_tokens = bench.count(64, 10)
    prompts = [served.prompt(bench.count(context, 40), seed) for seed in range(bench.count(count, 2))]
    plain = [served.request(prompt, num_tokens) for prompt in prompts]
    found = {"plain": served.run(plain)}
    drafted = [
        served.request(each.prompt, num_tokens, "auto", prediction=corrupted(each.output, wrong, vocab_size, seed))
        for seed, each in enumerate(plain)
    ]
    found["drafted"] = served.run(drafted)
    return found | {"same": num_same(plain, drafted), "of": len(plain)}


def num_same(plain: Sequence[Request], drafted: Sequence[Request]) -> int:
    return sum(one.output.tolist() == other.output.tolist() for one, other in zip(plain, drafted, strict=True))


def late_kernels(served: Served) -> dict[str, int]:
    """Kernels that were compiled while requests of all kinds ran."""
    before = num_kernels()
    asked: list[dict[str, Any]] = [
        {},
        SAMPLED,
        SAMPLED | {"top_k": 40, "presence_penalty": 0.5},
        {"logprobs": 20, "prompt_logprobs": 2},
        {"logit_bias": {5: 1.0}, "allowed_token_ids": tuple(range(100))},
    ]
    requests = [
        served.request(served.prompt(served.bench.count(700, 60) + number, number), 16, method, asked=each)
        for number, (each, method) in enumerate((each, method) for each in asked for method in served.engine.methods)
    ]
    served.run(requests)
    return {"before": before, "after": num_kernels()}


def num_kernels() -> int:
    """Compiled variants of our kernels in this process."""
    from decoding.kernels.gpu import attention, kv_rows, merge, moves
    from decoding.kernels.gpu import rows as layer_kernels
    from decoding.kernels.gpu.sampling import draw, edit, scan, walk

    modules = (attention, kv_rows, merge, layer_kernels, moves, draw, edit, scan, walk)
    found = {
        id(value): value for module in modules for value in vars(module).values() if hasattr(value, "device_caches")
    }
    return sum(len(caches[0]) for kernel in found.values() for caches in kernel.device_caches.values())


def profile(served: Served) -> list[dict[str, Any]]:
    """What takes the device's time in plain steps of one request, by kernel."""
    engine = served.engine
    engine.add(served.request(served.prompt(served.bench.count(1024, 32), 1), PROFILED_STEPS + 8))
    for _ in range(4):
        engine.step()
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if served.bench.device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as profiler:
        for _ in range(PROFILED_STEPS):
            engine.step()
        served.bench.wait()
    served.run([])
    events = sorted(profiler.key_averages(), key=lambda each: -each.self_device_time_total)[:PROFILED_KERNELS]
    return [
        {
            "name": each.key[:120],
            "calls_a_step": each.count / PROFILED_STEPS,
            "us_a_step": each.self_device_time_total / PROFILED_STEPS,
        }
        for each in events
    ]


def first_tokens(served: Served) -> dict[str, float]:
    """Seconds to the first token, by the length of the prompt."""
    found = {}
    for length in (512, 2048, 8192):
        prompt = served.prompt(served.bench.count(length, 40), length)
        times = [served.run([served.request(prompt + number, 1)])["seconds"] for number in range(3)]
        found[str(length)] = min(times)
    return found


def gaps_beside_a_prompt(served: Served) -> dict[str, list[float]]:
    """Milliseconds between the tokens of four requests, before and after a long prompt enters."""
    engine, bench = served.engine, served.bench
    for number in range(4):
        engine.add(served.request(served.prompt(64, number), bench.count(200, 24)))
    moments: dict[str, list[float]] = {"before": [], "after": []}
    for number in range(bench.count(160, 20)):
        if number == bench.count(60, 10):
            engine.add(served.request(served.prompt(bench.count(8192, 200), 99), 4))
        result = engine.step()
        if result.of(Tokens):
            moments["before" if number < bench.count(60, 10) else "after"].append(time.perf_counter())
    served.run([])
    return {
        name: [1000 * float(np.quantile(np.diff(times), share)) for share in (0.5, 0.9, 1.0)]
        for name, times in moments.items()
    }
