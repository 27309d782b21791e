"""Turns the engine's totals into Prometheus metric families. Pure; owns the metrics' names and help texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from decoding import __version__
from decoding.core.stats import NODE_BOUNDS, NodeHistogram
from decoding.worker.messages import Ready
from server.engine_client.status import EngineStatus
from server.engine_client.worker import Worker
from server.metrics.totals import MAX_DEPTH, WINDOW_STEPS, StepTotals

KEY_DIGITS = 8
DECODE_STEPS = "steps that decoded and ran no prompt tokens"
SPEEDUP = (
    "Tokens per second of decoding against plain decoding at the same load: the seconds that plain decoding would "
    "have needed for the tokens of a step (from the measured cost of a plain step at the same number of requests "
    f"and context), summed, divided by the seconds the steps took, summed, over the last {WINDOW_STEPS} "
    f"{DECODE_STEPS}. 0 before the first."
)


def engine_metrics(totals: StepTotals) -> Iterator[Metric]:
    yield from _gauges(totals)
    yield from _counters(totals)
    yield from _labelled(totals)


def status_metrics(status: EngineStatus) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "gander_worker_restarts", "Worker processes that took the place of others", status.restarts
    )
    is_ready = status.state == "ready"
    yield GaugeMetricFamily("gander_ready", "1 if requests are served now", int(is_ready))


def worker_metrics(workers: Sequence[Worker]) -> Iterator[Metric]:
    ready = GaugeMetricFamily("gander_worker_ready", "1 if this worker runs requests now", labels=("worker",))
    given = GaugeMetricFamily(
        "gander_worker_open_requests", "Requests without an end, by the worker that has them", labels=("worker",)
    )
    for worker in workers:
        ready.add_metric((str(worker.number),), int(worker.can_run))
        given.add_metric((str(worker.number),), len(worker.requests))
    yield from (ready, given)


def load_metrics(
    counts: Mapping[tuple[str, bool], int], num_bytes: int, num_prompt_tokens_left: int
) -> Iterator[Metric]:
    """Open requests, labelled with their API key (the first digits of its hash) and whether they have a token yet;
    the bytes that they hold; and what of their prompts is to be run.

    counts: by tenant and whether the first token has come."""
    gauge = GaugeMetricFamily(
        "gander_open_requests", "Requests without an end, by API key and state", labels=("key", "state")
    )
    for (tenant, has_token), number in counts.items():
        gauge.add_metric((tenant[:KEY_DIGITS] or "none", "writing" if has_token else "waiting"), number)
    yield gauge
    text = "Memory that open requests hold in their workers beside the KV cache, estimated"
    yield GaugeMetricFamily("gander_request_bytes", text, num_bytes)
    text = "Prompt tokens of open requests that have not run yet; of a running prompt as told twice a second at most"
    yield GaugeMetricFamily("gander_prompt_tokens_remaining", text, num_prompt_tokens_left)


def ready_metrics(model_name: str, engine: Ready) -> Iterator[Metric]:
    """Model, version, device, dtype and attention as labels of a constant 1; and the memory that workers will take."""
    labels = {"device": engine.device, "dtype": engine.dtype, "attention": engine.attention}
    yield InfoMetricFamily("gander", "What serves", {"model": model_name, "version": __version__} | labels)
    yield GaugeMetricFamily(
        "gander_worker_expected_bytes",
        "Memory of their devices that workers said at start they take once full; what sessions remember comes on top",
        engine.expected_bytes,
    )


def _gauges(totals: StepTotals) -> Iterator[Metric]:
    engine = totals.engine
    rows: tuple[tuple[str, str, float], ...] = (
        ("running", "Requests being decoded or prefilled", engine.running),
        ("waiting", "Requests waiting in the engine", engine.waiting),
        ("slots_used", "Slots of the KV cache that requests hold; a slot is room for one token", engine.slots_used),
        ("slots_cached", "Slots that no request holds and whose tokens a prompt may find", engine.slots_cached),
        ("slots", "Slots of the KV cache", engine.slots_total),
        ("slots_total", "The old name of gander_slots, which the next release leaves out", engine.slots_total),
        ("sessions", "Sessions whose stores are kept", engine.sessions),
        ("session_bytes", "Bytes of all sessions' stores", engine.session_bytes),
        ("worker_resident_bytes", "Resident memory of the worker processes", engine.resident_bytes),
        ("draft_bytes", "Bytes of the draft model's weights and its part of the slots", engine.draft_bytes),
        ("state_bytes", "Bytes of the states that the model's layers carry from token to token", engine.state_bytes),
        ("state_checkpoints", "States that are kept for prompts that begin alike", engine.state_checkpoints),
        ("kept_prompts_bytes", "Bytes of the files in --prefix-dir", engine.kept_bytes),
        ("speedup", SPEEDUP, totals.speedup),
    )
    for name, text, value in rows:
        yield GaugeMetricFamily(f"gander_{name}", text, value)


def _counters(totals: StepTotals) -> Iterator[Metric]:
    engine = totals.engine
    rows: tuple[tuple[str, str, float], ...] = (
        ("steps", "Engine steps, each one packed forward", totals.steps),
        ("rows", "Tokens of all packed forwards, drafted and prompt tokens included, padding not", totals.rows),
        ("prefill_rows", "Prompt tokens of all packed forwards", totals.prefill_rows),
        ("prefix_cache_queries_tokens", "Tokens of prompts that were looked up in the cache", totals.prefix_queries),
        ("prefix_cache_hits_tokens", "Tokens of prompts found in the cache, so not run", totals.prefix_hits),
        ("kept_prompts_hits", "Prompts for which files in --prefix-dir were read", engine.kept_hits),
        ("kept_prompts_tokens", "Tokens of prompts that were read from these, so not run", engine.kept_tokens),
        ("kept_prompts_seconds", "Seconds that reading them took, beside steps", engine.kept_seconds),
        ("preemptions", "Requests that gave up their place or room to others, to be run again", totals.preemptions),
        ("step_seconds", "Seconds spent in steps", totals.step_seconds),
        ("decode_seconds", f"Seconds spent in {DECODE_STEPS}", totals.decode_seconds),
        (
            "plain_seconds",
            f"Seconds that plain decoding would have needed for the tokens of {DECODE_STEPS}, at the same load. The "
            "speedup over any time is its increase divided by that of gander_decode_seconds_total",
            totals.plain_seconds,
        ),
    )
    for name, text, value in rows:
        yield CounterMetricFamily(f"gander_{name}", text, value)


def _labelled(totals: StepTotals) -> Iterator[Metric]:
    phases = CounterMetricFamily("gander_phase_seconds", "Seconds of steps by phase of the step", labels=("phase",))
    for phase, seconds in totals.phase_seconds.items():
        phases.add_metric((phase,), seconds)
    yield phases
    refusals = CounterMetricFamily(
        "gander_draft_refusals", "Requests the draft model could do nothing more for, by reason", labels=("reason",)
    )
    for reason, number in totals.refusals.items():
        refusals.add_metric((reason,), number)
    yield refusals
    yield _by_method("gander_target_forwards", "Decode steps counted once per request in them", totals.forwards)
    yield _by_method("gander_emitted_tokens", "Tokens emitted, first tokens after prefill included", totals.emitted)
    yield _by_method("gander_drafts", "Trees with at least one drafted node", totals.drafts)
    yield _histogram("gander_budget_nodes", "Nodes the scheduler allowed a request's tree in a step", totals.budgets)
    yield _histogram("gander_tree_nodes", "Nodes of a request's tree in a step, the root left out", totals.trees)
    yield _by_source("gander_drafted_tokens", "Nodes drafted, roots left out", totals.drafted)
    yield _by_source("gander_accepted_tokens", "Drafted nodes that the target accepted", totals.accepted)
    depths = CounterMetricFamily(
        "gander_accepted_tokens_by_depth",
        f"Accepted nodes by their depth in the tree; {MAX_DEPTH} means {MAX_DEPTH} or deeper",
        labels=("method", "depth"),
    )
    for (method, depth), number in totals.accepted_by_depth.items():
        depths.add_metric((method, str(depth)), number)
    yield depths


def _by_method(name: str, text: str, numbers: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("method",))
    for method, number in numbers.items():
        family.add_metric((method,), number)
    return family


def _histogram(name: str, text: str, histograms: Mapping[str, NodeHistogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=("method",))
    bounds = [*(str(float(bound)) for bound in NODE_BOUNDS), "+Inf"]
    for method, histogram in histograms.items():
        numbers = [histogram.numbers.get(bucket, 0) for bucket in range(len(bounds))]
        buckets = list(zip(bounds, accumulate(numbers), strict=True))
        family.add_metric((method,), buckets, histogram.total)
    return family


def _by_source(name: str, text: str, numbers: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("method", "source"))
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family
