"""The engine's totals under their metric names. Pure: numbers in, metric families out.

Owns the engine metrics' names and help texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from server.client import EngineStatus
from server.totals import MAX_DEPTH, WINDOW_STEPS, StepTotals

SPEEDUP = (
    "Tokens per second of decoding against plain decoding at the same load: the seconds that plain decoding would "
    "have needed for the tokens of a step (from the measured cost of a plain step at the same number of requests "
    f"and context), summed, divided by the seconds the steps took, summed, over the last {WINDOW_STEPS} steps "
    "that decoded and had no prefill rows. 0 before the first."
)


def engine_metrics(totals: StepTotals, model_name: str, prompt_tokens: int) -> Iterator[Metric]:
    yield from _gauges(totals)
    yield from _counters(totals)
    yield from _labelled(totals)
    yield from _vllm(totals, {"model_name": model_name, "engine": "0"}, prompt_tokens)


def status_metrics(status: EngineStatus) -> Iterator[Metric]:
    yield CounterMetricFamily("gander_worker_restarts", "Worker processes started after the first", status.restarts)
    is_ready = status.state == "ready"
    yield GaugeMetricFamily("gander_ready", "1 if requests are served now", int(is_ready))


def _gauges(totals: StepTotals) -> Iterator[Metric]:
    engine = totals.engine
    rows: tuple[tuple[str, str, float], ...] = (
        ("running", "Requests being decoded or prefilled", engine.running),
        ("waiting", "Requests waiting in the engine", engine.waiting),
        ("slots_used", "Slots of the KV store in use; a slot is room for one token", engine.slots_used),
        ("slots_total", "Slots of the KV store", engine.slots_total),
        ("sessions", "Sessions whose stores are kept", engine.sessions),
        ("session_bytes", "Bytes of all sessions' stores", engine.session_bytes),
        ("worker_resident_bytes", "Resident memory of the worker process", engine.resident_bytes),
        ("draft_slots_used", "Slots of the draft model in use", engine.draft_slots_used),
        ("draft_slots_total", "Slots of the draft model", engine.draft_slots_total),
        ("draft_bytes", "Bytes of the draft model's weights and slots", engine.draft_bytes),
        ("speedup", SPEEDUP, totals.speedup),
    )
    for name, text, value in rows:
        yield GaugeMetricFamily(f"gander_{name}", text, value)


def _counters(totals: StepTotals) -> Iterator[Metric]:
    rows: tuple[tuple[str, str, float], ...] = (
        ("steps", "Engine steps, each one packed forward", totals.steps),
        ("rows", "Rows of all packed forwards, padding left out", totals.rows),
        ("prefill_rows", "Rows that were prompt tokens", totals.prefill_rows),
        (
            "target_forwards",
            "Decode steps counted once per request in them. Acceptance length, prefill left out, is "
            "1 + accepted / target_forwards",
            totals.target_forwards,
        ),
        ("emitted_tokens", "Tokens emitted, first tokens after prefill included", totals.emitted),
        ("step_seconds", "Seconds spent in steps", totals.step_seconds),
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
    drafts = CounterMetricFamily("gander_drafts", "Trees with at least one drafted node", labels=("method",))
    for method, number in totals.drafts.items():
        drafts.add_metric((method,), number)
    yield drafts
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


def _by_source(name: str, text: str, numbers: Mapping[tuple[str, str], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=("method", "source"))
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family


def _vllm(totals: StepTotals, labels: dict[str, str], prompt_tokens: int) -> Iterator[Metric]:
    engine, names, values = totals.engine, tuple(labels), tuple(labels.values())
    counters = (
        ("spec_decode_num_drafts", "Drafts", totals.drafts.total()),
        ("spec_decode_num_draft_tokens", "Drafted tokens", totals.drafted.total()),
        ("spec_decode_num_accepted_tokens", "Accepted tokens", totals.accepted.total()),
        ("prompt_tokens", "Prompt tokens of finished requests", prompt_tokens),
        ("generation_tokens", "Tokens emitted", totals.emitted),
    )
    for name, text, number in counters:
        counter = CounterMetricFamily(f"vllm:{name}", f"vLLM's name: {text}", labels=names)
        counter.add_metric(values, number)
        yield counter
    positions = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "vLLM's name: Accepted tokens by position, 0 being the first drafted one",
        labels=(*names, "position"),
    )
    by_position: dict[int, int] = {}
    for (_, depth), number in totals.accepted_by_depth.items():
        by_position[depth - 1] = by_position.get(depth - 1, 0) + number
    for position, number in sorted(by_position.items()):
        positions.add_metric((*values, str(position)), number)
    yield positions
    gauges = (
        ("num_requests_running", "Requests running", engine.running),
        ("num_requests_waiting", "Requests waiting", engine.waiting),
        ("kv_cache_usage_perc", "KV slots in use, 1 being all", engine.slots_used / (engine.slots_total or 1)),
    )
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"vllm:{name}", f"vLLM's name: {text}", labels=names)
        gauge.add_metric(values, value)
        yield gauge
