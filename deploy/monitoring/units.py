"""Formats numbers in those of Grafana's units that our dashboards use. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable


def formatter(unit: str, decimals: int | None = None) -> Callable[[float], str]:
    """A function that formats values as a panel with this unit does."""

    def number(value: float) -> str:
        return f"{value:.3g}" if decimals is None else f"{value:.{decimals}f}"

    match unit:
        case "s":
            return seconds
        case "percentunit":
            return lambda value: f"{100 * value:.{decimals}f} %" if decimals is not None else f"{100 * value:.3g} %"
        case "reqps":
            return lambda value: f"{number(value)} /s"
        case _:
            return lambda value: number(value) + unit.partition("suffix:")[2]


def seconds(value: float) -> str:
    """A duration in s, ms or µs: the largest in which the number is at least one."""
    if value == 0 or math.isnan(value):
        return f"{value:g} s"
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if value * factor >= 1:
            return f"{value * factor:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"
