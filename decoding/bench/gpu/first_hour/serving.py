"""Engines of random weights on the device: whether replies are the same drafted and plain, and how quick they are."""

from __future__ import annotations

import time
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from decoding.bench.gpu.first_hour.bench import Bench, Served, corrupted, random_model
from decoding.bench.gpu.first_hour.deadline import Measure
from decoding.core.events import Tokens
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.self_test import long_chain

PROFILED_STEPS, PROFILED_KERNELS = 10, 40
SMALL_SLOTS = 65_536  # of each of three engines that are there at once
RATES = (0.6, 0.3, 0.15)  # of wrong tokens in predictions: about 1.5, 2.5 and 3.5 tokens a forward
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 7}


def small(bench: Bench) -> dict[str, Measure]:
    """Of the 0.6B shape."""

    @cache
    def served(**given: bool) -> Served:
        return Served.of(bench, random_model(bench, bench.shape(0)), 4096, SMALL_SLOTS, **given)

    return {
        "start": lambda: start(served()),
        "replays": lambda: replays(served()),
        "same tokens, greedy, alone": lambda: same_tokens(served(), {}, 16, 1),
        "same tokens, greedy": lambda: same_tokens(served(), {}, 64, 8),
        "same tokens, sampled": lambda: same_tokens(served(), SAMPLED, 64, 8),
        "compilations after the start": lambda: late_kernels(served()),
        "profile": lambda: profile(served()),
        "start compiled": lambda: start(served(compile=True)),
        "replays compiled": lambda: replays(served(compile=True)),
        "start exact": lambda: start(served(exact=True)),
        "replays exact": lambda: replays(served(exact=True)),
        "same tokens, exact": lambda: same_tokens(served(exact=True), SAMPLED, 64, 8),
    }


def large(bench: Bench) -> dict[str, Measure]:
    """Of the 8B shape."""

    @cache
    def model() -> PreTrainedModel:
        return random_model(bench, bench.shape(1))

    @cache
    def served() -> Served:
        return Served.of(bench, model(), 16_384)

    def rated(count: int, wrong: float | None) -> dict[str, Any]:
        return rate(served(), count, wrong)

    measured: dict[str, Measure] = {
        "transformers": lambda: generated(bench, model()),
        "start": lambda: start(served()),
        "replays": lambda: replays(served()),
    }
    for count in (1, 8, 32):
        measured[f"{count} plain"] = partial(rated, count, None)
        for wrong in RATES:
            measured[f"{count} drafted, {wrong:.0%} wrong"] = partial(rated, count, wrong)
    measured |= {
        "first tokens": lambda: first_tokens(served()),
        "gaps beside a prompt": lambda: gaps_beside_a_prompt(served()),
        "memory": bench.memory,
    }
    return measured


def start(served: Served) -> dict[str, Any]:
    engine = served.engine
    return {
        "told": served.told,
        "is_captured": isinstance(engine._runner, GraphRunner),
        "is_compiled": engine.model._static.is_compiled,
        "is_exact": engine.is_exact,
        "exactness": engine.exactness._asdict(),
        "seconds": engine.load_seconds,
        "kv_slots": engine.room.num_slots,
        "memory": served.bench.memory(),
    }


def replays(served: Served) -> dict[str, float]:
    """Milliseconds of bare forwards by their rows; of those that are not captured, operation by operation."""
    engine, bench, runner = served.engine, served.bench, served.engine._runner
    if isinstance(runner, GraphRunner):
        return {str(rows): 1000 * bench.seconds(replay) for rows, replay in sorted(runner._replays.items())}
    batches = {rows: long_chain(engine.model, rows, 1) for rows in (1, 16, 64)}
    return {str(rows): 1000 * bench.seconds(partial(engine.model.launch, batch)) for rows, batch in batches.items()}


def same_tokens(served: Served, asked: dict[str, Any], count: int, together: int) -> dict[str, Any]:
    """Of so many replies, drafted and plain, so many at a time: how many are the same, and where the others part. Of
    one at a time no step has more than 64 rows."""
    bench, parted, pairs = served.bench, list[int](), 0
    num_tokens, total = bench.count(256, 12), bench.count(count, 4)
    for first in range(0, total, together):
        seeds = range(first, min(total, first + together))
        plain = [served.request(served.prompt(64, seed), num_tokens, asked=asked) for seed in seeds]
        served.run(plain)
        vocab_size = served.engine.model.vocab_size
        drafted = [
            served.request(
                each.prompt, num_tokens, "auto", asked=asked, prediction=corrupted(each.output, 0.2, vocab_size, seed)
            )
            for seed, each in zip(seeds, plain, strict=True)
        ]
        found = served.run(drafted)
        for one, other in zip(plain, drafted, strict=True):
            is_other = one.output != other.output
            pairs += 1
            parted += [int(np.argmax(is_other))] if is_other.any() else []
    return {"pairs": pairs, "parted_at": parted, "tokens_a_forward": found["tokens_a_forward"]}


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
    from decoding.kernels.gpu import attention as kernels
    from decoding.kernels.gpu import moves
    from decoding.kernels.gpu import rows as layer_kernels
    from decoding.kernels.gpu.sampling import draw, edit, scan, walk

    modules = (kernels, layer_kernels, moves, draw, edit, scan, walk)
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


def rate(served: Served, count: int, wrong: float | None) -> dict[str, Any]:
    """Tokens a second of so many requests, drafted from predictions of which so many tokens are wrong."""
    bench, vocab_size = served.bench, served.engine.model.vocab_size
    num_tokens = bench.count(128, 10)
    prompts = [served.prompt(bench.count(512, 40), seed) for seed in range(bench.count(count, 2))]
    plain = [served.request(prompt, num_tokens) for prompt in prompts]
    found = served.run(plain)
    if wrong is None:
        return found
    drafted = [
        served.request(each.prompt, num_tokens, "auto", prediction=corrupted(each.output, wrong, vocab_size, seed))
        for seed, each in enumerate(plain)
    ]
    again = served.run(drafted)
    same = sum(bool((one.output == other.output).all()) for one, other in zip(plain, drafted, strict=True))
    return again | {"same": same, "of": len(plain), "plain_tokens_a_second": found["tokens_a_second"]}


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


def generated(bench: Bench, model: PreTrainedModel) -> dict[str, float]:
    """transformers' own `generate`, one request."""
    num_tokens = bench.count(64, 4)
    ids = torch.arange(bench.count(512, 16), device=bench.device)[None] % model.config.vocab_size

    def answer() -> None:
        model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, min_new_tokens=num_tokens,
            do_sample=False, pad_token_id=0,
        )  # fmt: skip

    return {"tokens_a_second": num_tokens / bench.seconds(answer, 3)}
