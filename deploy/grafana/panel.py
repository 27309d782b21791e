"""A panel as plain data, and the PromQL that panels share. Knows nothing of Grafana's JSON.

Every query filters by the dashboard's variables: $instance always, $method where the metric has that label.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["timeseries", "stat", "heatmap", "bargauge"]

INSTANCE = 'instance=~"$instance"'
METHOD = f'{INSTANCE},method=~"$method"'
WINDOW = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    """legend: in Grafana's notation, where {{label}} stands for a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """unit: Grafana's name of the unit. width: in columns, of 24. floor: values below it are shown in red.

    is_stacked: series are stacked to a whole. is_instant: one number for the whole time shown, not a series. limit: the
    end of the scale. is_name: a stat shows its legend, not its value.
    """

    title: str
    description: str
    queries: tuple[Query, ...]
    unit: str
    kind: Kind = "timeseries"
    width: int = 8
    height: int = 8
    floor: float | None = None
    limit: float | None = None
    decimals: int | None = None
    is_stacked: bool = False
    is_instant: bool = False
    is_name: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, selector: str = INSTANCE, window: str = WINDOW) -> str:
    return f"rate({metric}{{{selector}}}[{window}])"


def sum_rate(metric: str, selector: str = INSTANCE, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({rate(metric, selector)})"


def quantiles(metric: str) -> tuple[Query, ...]:
    """Median, 90th and 99th percentile of a histogram."""
    buckets = sum_rate(f"{metric}_bucket", by="le")
    return tuple(Query(f"histogram_quantile({q}, {buckets})", f"p{q * 100:.0f}") for q in (0.5, 0.9, 0.99))


def buckets(metric: str, selector: str = INSTANCE) -> tuple[Query, ...]:
    """The number of observations in each bucket, for a heatmap."""
    return (Query(f"sum by (le) (increase({metric}_bucket{{{selector}}}[{WINDOW}]))", "{{le}}"),)
