"""Prometheus metrics of one model: histograms and counters of requests, and the engine's totals, read at each scrape.

Owns names, labels and buckets, in a registry of its own. Ratios are left to PromQL, except for the speedup gauge, whose
help text defines it. Names that begin with vllm: are vLLM's, so that tools made for it can read them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import product
from math import inf

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from decoding.core.events import Finished
from decoding.core.stats import CHOICES, METHOD_NAMES
from decoding.worker.messages import StepReport
from server.engine_client.client import EngineClient
from server.engine_client.open_requests import Ticket
from server.engine_client.replies import End
from server.engine_client.status import EngineStatus
from server.metrics.exposition import engine_metrics, load_metrics, ready_metrics, status_metrics, worker_metrics
from server.metrics.totals import StepTotals
from server.metrics.vllm_names import VllmRequests, vllm_cache_config, vllm_engine_metrics

LATENCY_BUCKETS = (
    *(0.0005, 0.001, 0.0015, 0.002, 0.0025, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05),
    *(0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0),
)
# Labels whose counters exist from the start, at 0, so that PromQL sees their first increase.
ENDS = ("stop", "length", "abort", "rejected", "failed", "workergone", "expired")
LENGTH_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)

PROMPT_CLASSES = {"1k": 1024, "4k": 4096, "16k": 16384, "64k": 65536, "more": inf}  # the most tokens of each


def prompt_class(num_tokens: int) -> str:
    """The class that a prompt of so many tokens is counted in."""
    return next(name for name, most in PROMPT_CLASSES.items() if num_tokens <= most)


class ModelMetrics:
    """All metrics of a model, whose client calls the on_... methods. `ServerMetrics` adds the label model_name to those
    that lack it."""

    def __init__(self, model_name: str) -> None:
        self.registry = CollectorRegistry()
        self.totals = StepTotals()
        self.prompt_tokens = 0
        self.model_name = model_name
        self._read_status: Callable[[], EngineStatus] = EngineStatus
        self._client: EngineClient | None = None
        self._tenants: set[str] = set()  # tenants that had a request end; at most as many as there are keys
        self.registry.register(_Engine(self._engine_metrics))
        self._add_request_metrics()

    def watch(self, client: EngineClient, read_status: Callable[[], EngineStatus]) -> None:
        """From now on every scrape reads the state of the workers and the server from these."""
        self._client, self._read_status = client, read_status

    def on_report(self, worker: int, report: StepReport) -> None:
        self.totals.add(report, worker)

    def on_death(self, worker: int) -> None:
        self.totals.forget_engine(worker)

    def on_end(self, ticket: Ticket, end: End) -> None:
        """Count one ended request. Times are measured in this process, except for the wait in the engine's queue."""
        self._tenants.add(ticket.request.tenant)
        if not isinstance(end, Finished):
            self._ends.labels(type(end).__name__.lower()).inc()
            return
        self._ends.labels(end.reason).inc()
        self._vllm.on_end(end.reason)
        self._choices.labels(end.stats.method, end.stats.choice).inc()
        self.prompt_tokens += end.stats.prompt_tokens
        self._queue.observe(end.stats.queue_seconds)
        if end.reason == "abort" or not ticket.num_tokens:
            return
        first_token, end_to_end = ticket.first_token - ticket.submitted, time.perf_counter() - ticket.submitted
        self._first_token.labels(prompt_class(len(ticket.request.prompt))).observe(first_token)
        self._end_to_end.observe(end_to_end)
        self._vllm.on_reply(first_token, ticket.gaps, end_to_end)
        self._reply_tokens.observe(ticket.num_tokens)
        if ticket.num_tokens > 1:
            seconds = ticket.last_token - ticket.first_token
            self._per_token.observe(seconds / (ticket.num_tokens - 1))

    def on_resumed(self, num_requests: int) -> None:
        """Count requests that continue on another worker."""
        self._resumed.inc(num_requests)

    def _engine_metrics(self) -> Iterable[Metric]:
        yield from engine_metrics(self.totals)
        yield from vllm_engine_metrics(self.totals, self.model_name, self.prompt_tokens)
        yield from status_metrics(self._read_status())
        if self._client is None:
            return
        yield from worker_metrics(self._client.workers)
        nothing = dict.fromkeys(product(self._tenants, (False, True)), 0)
        counts = {**nothing, **self._client.num_by_tenant()}
        yield from load_metrics(counts, self._client.num_bytes(), self._client.num_prompt_tokens_left())
        if (engine := self._client.ready) is not None:
            yield from ready_metrics(self.model_name, engine)
            yield vllm_cache_config(self.model_name, engine)

    def _add_request_metrics(self) -> None:
        def histogram(name: str, text: str, buckets: Iterable[float] = LATENCY_BUCKETS) -> Histogram:
            return Histogram(name, text, registry=self.registry, buckets=tuple(buckets))

        self._first_token = Histogram(
            "gander_time_to_first_token_seconds",
            "Request submitted to first token, by the length of its prompt: up to so many tokens, or more",
            ("prompt_tokens",),
            registry=self.registry,
            buckets=LATENCY_BUCKETS,
        )
        for name in PROMPT_CLASSES:
            self._first_token.labels(name)
        self._per_token = histogram(
            "gander_time_per_output_token_seconds", "First token to last, divided by the tokens after the first"
        )
        self._end_to_end = histogram("gander_request_seconds", "Request submitted to its end")
        self._queue = histogram("gander_queue_seconds", "Wait in the engine before the first forward")
        self._reply_tokens = histogram("gander_reply_tokens", "Tokens of a reply", LENGTH_BUCKETS)
        self._vllm = VllmRequests(self.registry, self.model_name, LATENCY_BUCKETS)
        self._ends = Counter("gander_requests", "Requests (choices) ended, by how", ("end",), registry=self.registry)
        for end in ENDS:
            self._ends.labels(end)
        self._resumed = Counter(
            "gander_resumed_requests",
            "Requests that went on with another worker",
            registry=self.registry,
        )
        self._choices = Counter(
            "gander_choices",
            "Requests ended, by the method that drafted last and why it did: requested or fallback",
            ("method", "choice"),
            registry=self.registry,
        )
        for method, choice in product(METHOD_NAMES, CHOICES):
            self._choices.labels(method, choice)


class _Engine(Collector):
    """Makes metric families of the totals at each scrape, so that a step itself costs only additions."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        return self._read()

    def describe(self) -> Iterable[Metric]:
        return ()
