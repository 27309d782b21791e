"""All metrics of a server: its own, and those of its models side by side, told apart by the label model_name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from server.http.errors import ApiError
from server.metrics.metrics import ModelMetrics

LABEL = "model_name"
OPERATIONAL_CODES = (  # whose counters exist from the start, at 0, so that PromQL sees their first increase
    *("internal_error", "queue_full", "worker_died", "engine_restarting", "engine_silent", "server_stopping"),
    *("queue_timeout", "timeout", "rate_limit_exceeded"),
)


class ServerMetrics:
    """The middleware calls its on_... methods."""

    def __init__(self, models: Iterable[ModelMetrics]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_Models(tuple(models)))
        ProcessCollector(registry=self.registry)
        self._http_requests = Counter(
            "gander_http_requests", "HTTP requests by route and status", ("route", "status"), registry=self.registry
        )
        self._errors = Counter(
            "gander_errors", "Errors answered, by the code clients see", ("code",), registry=self.registry
        )
        for code in OPERATIONAL_CODES:
            self._errors.labels(code)

    def on_error(self, error: ApiError) -> None:
        """Count an error that was answered, also one inside a stream."""
        self._errors.labels(error.code).inc()

    def on_request(self, route: str, status: int) -> None:
        """Count an HTTP request that was answered."""
        self._http_requests.labels(route, str(status)).inc()


class _Models(Collector):
    """The models' families, each once with the samples of all models, as Prometheus's formats want them."""

    def __init__(self, models: tuple[ModelMetrics, ...]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for model in self._models:
            for family in model.registry.collect():
                samples = [each._replace(labels={LABEL: model.model_name, **each.labels}) for each in family.samples]
                whole = families.setdefault(family.name, family)
                whole.samples = samples if whole is family else [*whole.samples, *samples]
        yield from families.values()

    def describe(self) -> Iterable[Metric]:
        return ()
