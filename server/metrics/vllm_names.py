"""The same numbers under vLLM's metric names, for routers, autoscalers and dashboards that read those.

All have vLLM's labels model_name and engine, of which the latter is always "0".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from decoding.config import BLOCK_LEN
from decoding.worker.messages import Ready
from server.metrics.totals import StepTotals

ENGINE = "0"  # the label's value: vLLM numbers the engines of a process, and here there is one
LABELS = ("model_name", "engine")
REASONS = ("stop", "length", "abort")  # how a request that did not fail may end


def vllm_engine_metrics(totals: StepTotals, model_name: str, prompt_tokens: int) -> Iterator[Metric]:
    """The engine's counters and gauges. prompt_tokens: those of finished requests."""
    values = (model_name, ENGINE)
    for name, text, number in _counts(totals, prompt_tokens):
        counter = CounterMetricFamily(f"vllm:{name}", f"vLLM's name: {text}", labels=LABELS)
        counter.add_metric(values, number)
        yield counter
    for name, text, value in _values(totals):
        gauge = GaugeMetricFamily(f"vllm:{name}", f"vLLM's name: {text}", labels=LABELS)
        gauge.add_metric(values, value)
        yield gauge
    positions = CounterMetricFamily(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "vLLM's name: Accepted tokens by position, 0 being the first drafted one",
        labels=(*LABELS, "position"),
    )
    by_position: dict[int, int] = {}
    for (_, depth), number in totals.accepted_by_depth.items():
        by_position[depth - 1] = by_position.get(depth - 1, 0) + number
    for position, number in sorted(by_position.items()):
        positions.add_metric((*values, str(position)), number)
    yield positions


def vllm_cache_config(model_name: str, engine: Ready) -> Metric:
    """The KV cache's layout as labels of a constant 1. The label is num_gpu_blocks also where the device is a CPU."""
    config = {
        "model_name": model_name,
        "engine": ENGINE,
        "block_size": str(BLOCK_LEN),
        "num_gpu_blocks": str(engine.kv_slots // BLOCK_LEN),
        "cache_dtype": engine.kv_dtype or engine.dtype,
    }
    return InfoMetricFamily("vllm:cache_config", "vLLM's name: Blocks of the KV cache", config)


def _counts(totals: StepTotals, prompt_tokens: int) -> Iterator[tuple[str, str, int]]:
    yield "spec_decode_num_drafts", "Drafts", totals.drafts.total()
    yield "spec_decode_num_draft_tokens", "Drafted tokens", totals.drafted.total()
    yield "spec_decode_num_accepted_tokens", "Accepted tokens", totals.accepted.total()
    yield "prompt_tokens", "Prompt tokens of finished requests", prompt_tokens
    yield "generation_tokens", "Tokens emitted", totals.emitted.total()
    for cache in ("prefix_cache", "gpu_prefix_cache"):  # the second is the name in older versions of vLLM
        yield f"{cache}_queries", "Prompt tokens looked up in the cache", totals.prefix_queries
        yield f"{cache}_hits", "Prompt tokens found in the cache", totals.prefix_hits
    yield "num_preemptions", "Preemptions", totals.preemptions


def _values(totals: StepTotals) -> Iterator[tuple[str, str, float]]:
    engine = totals.engine
    yield "num_requests_running", "Requests running", engine.running
    yield "num_requests_waiting", "Requests waiting", engine.waiting
    for cache in ("kv_cache", "gpu_cache"):  # the second is the name in older versions of vLLM
        yield (
            f"{cache}_usage_perc",
            "KV slots requests hold, 1 being all",
            engine.slots_used / (engine.slots_total or 1),
        )


class VllmRequests:
    """vLLM's histograms and counters of ended requests. buckets: bounds in seconds."""

    def __init__(self, registry: CollectorRegistry, model_name: str, buckets: Sequence[float]) -> None:
        def histogram(name: str, text: str) -> Histogram:
            whole = Histogram(f"vllm:{name}", f"vLLM's name: {text}", LABELS, registry=registry, buckets=buckets)
            return whole.labels(model_name, ENGINE)

        self._first_token = histogram("time_to_first_token_seconds", "Request submitted to first token")
        self._between = histogram("inter_token_latency_seconds", "From a step's tokens to the next step's")
        self._end_to_end = histogram("e2e_request_latency_seconds", "Request submitted to its end")
        ends = Counter(
            "vllm:request_success",
            "vLLM's name: Requests ended, but for those that failed",
            (*LABELS, "finished_reason"),
            registry=registry,
        )
        self._ends = {reason: ends.labels(model_name, ENGINE, reason) for reason in REASONS}

    def on_end(self, reason: str) -> None:
        self._ends[reason].inc()

    def on_reply(self, first_token: float, between: Sequence[float], end_to_end: float) -> None:
        """Observe one reply. All times are in seconds; between: from each step's tokens to the next step's."""
        self._first_token.observe(first_token)
        self._end_to_end.observe(end_to_end)
        for seconds in between:
            self._between.observe(seconds)
