"""A panel as plain data, and the PromQL that panels share. Knows nothing of Grafana's JSON.

Every query filters by the dashboard's variables: $instance always, $method where the metric has that label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Kind = Literal["timeseries", "stat", "heatmap", "bargauge"]

INSTANCE = 'instance=~"$instance"'
METHOD = f'{INSTANCE},method=~"$method"'
WINDOW = "$__rate_interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """queries: PromQL by its legend, which is in Grafana's notation, where {{label}} stands for a label's value. unit:
    Grafana's name of the unit. width: in columns, of 24. floor: values below it are shown in red. limit: the end of the
    scale.

    is_stacked: series are stacked to a whole. is_instant: one number for the whole time shown, not a series. is_name: a
    stat shows its legend, not its value.
    """

    kind: Kind
    title: str
    description: str
    unit: str
    queries: Mapping[str, str]
    width: int = 8
    height: int = 8
    floor: float | None = None
    limit: float | None = None
    decimals: int | None = None
    is_stacked: bool = False
    is_instant: bool = False
    is_name: bool = False


def panel(kind: Kind, title: str, description: str, unit: str, queries: Mapping[str, str], **looks: Any) -> Panel:
    """looks: the other fields of a panel."""
    return Panel(kind=kind, title=title, description=description, unit=unit, queries=queries, **looks)


graph = partial(panel, "timeseries")
heatmap = partial(panel, "heatmap")
bars = partial(panel, "bargauge")
stat = partial(panel, "stat", width=4, height=4)


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


def rate(metric: str, selector: str = INSTANCE, window: str = WINDOW) -> str:
    return f"rate({metric}{{{selector}}}[{window}])"


def sum_rate(metric: str, selector: str = INSTANCE, by: str = "") -> str:
    grouping = f" by ({by})" if by else ""
    return f"sum{grouping} ({rate(metric, selector)})"


def total(metric: str) -> str:
    """The metric's present value, of all servers together."""
    return f"sum({metric}{{{INSTANCE}}})"


def increase(metric: str, selector: str = INSTANCE, by: str = "") -> str:
    """By how much a counter grew in the time shown."""
    grouping = f" by ({by}) " if by else ""
    return f"sum{grouping}(increase({metric}{{{selector}}}[$__range]))"


def quantiles(metric: str, asked: Sequence[float] = (0.5, 0.9, 0.99)) -> dict[str, str]:
    """Quantiles of a histogram, by their percentage."""
    buckets = sum_rate(f"{metric}_bucket", by="le")
    return {f"p{q * 100:.0f}": f"histogram_quantile({q}, {buckets})" for q in asked}


def buckets(metric: str, selector: str = INSTANCE) -> dict[str, str]:
    """The number of observations in each bucket, for a heatmap."""
    return {"{{le}}": f"sum by (le) (increase({metric}_bucket{{{selector}}}[{WINDOW}]))"}
