"""Draws the inside of a panel (a number, lines, a heatmap or bars) into given axes, with matplotlib.

Knows a panel's JSON and the series that answer its queries; not where the panel lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator

from deploy.monitoring.live import SCRAPE_SECONDS, Series
from deploy.monitoring.queries import VARIABLE
from deploy.monitoring.units import formatter

CARD, EDGE = "#181b1f", "#2c3235"
COLORS = ("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#37872d", "#96d98d", "#ffb357")
GOOD, BAD = "#73bf69", "#f2495c"
MOST_COLUMNS, LONG_NAME = 4, 13


@dataclass(frozen=True, slots=True)
class Answer:
    """A panel, and the series of its queries, each with its legend. span: first and last moment, seconds since 1970."""

    panel: Mapping[str, Any]
    lines: Sequence[tuple[str, Series]]
    span: tuple[float, float]

    @property
    def seconds(self) -> float:
        return self.span[1] - self.span[0]

    @property
    def defaults(self) -> Mapping[str, Any]:
        defaults: Mapping[str, Any] = self.panel["fieldConfig"]["defaults"]
        return defaults

    @property
    def unit(self) -> Callable[[float], str]:
        return formatter(self.defaults["unit"], self.defaults.get("decimals"))

    @property
    def floor(self) -> float | None:
        """The value below which the panel is red; None if there is none."""
        steps = self.defaults["thresholds"]["steps"]
        return float(steps[1]["value"]) if len(steps) > 1 else None

    @property
    def num_legend_columns(self) -> int:
        longest = max(len(name) for name, _ in self.lines)
        return min(len(self.lines), MOST_COLUMNS if longest < LONG_NAME else MOST_COLUMNS // 2)

    @property
    def num_legend_rows(self) -> int:
        """No more than leave room for the lines, a row of names for each of Grafana's grid."""
        return min(math.ceil(len(self.lines) / self.num_legend_columns), self.panel["gridPos"]["h"])


def legend_of(template: str, series: Series) -> str:
    """The legend with labels put in for Grafana's {{label}}."""
    text = template.replace("{{", "${").replace("}}", "}")
    return VARIABLE.sub(lambda match: series.labels.get(match[1] or match[2], ""), text)


def draw(axes: Axes, answer: Answer) -> None:
    kinds = {"stat": _number, "timeseries": _lines, "heatmap": _heatmap, "bargauge": _bars}
    kinds[answer.panel["type"]](axes, answer)


def _number(axes: Axes, answer: Answer) -> None:
    """Draw the last value in large type, over a faint line of earlier values."""
    points = [point for _, series in answer.lines for point in series.points if not math.isnan(point[1])]
    times, numbers = [moment - answer.span[0] for moment, _ in points], [value for _, value in points]
    color = BAD if answer.floor is not None and numbers[-1] < answer.floor else GOOD
    axes.set_axis_off()
    axes.set_xlim(0, answer.seconds)
    axes.set_ylim(0, 2.2 * max([*numbers, 1e-9]))
    axes.fill_between(times, numbers, color=color, alpha=0.16, linewidth=0)
    text = answer.unit(numbers[-1])
    axes.text(0.5, 0.55, text, transform=axes.transAxes, ha="center", va="center", fontsize=19, color=color)


def _lines(axes: Axes, answer: Answer) -> None:
    num_steps = int(answer.seconds / SCRAPE_SECONDS)
    moments = [answer.span[0] + step * SCRAPE_SECONDS for step in range(num_steps + 1)]
    times = [moment - answer.span[0] for moment in moments]
    names = [name for name, _ in answer.lines]
    columns = [_column(series, moments) for _, series in answer.lines]
    colors = [COLORS[number % len(COLORS)] for number in range(len(names))]
    if answer.defaults["custom"]["stacking"]["mode"] == "normal":
        whole = [[0.0 if math.isnan(value) else value for value in column] for column in columns]
        axes.stackplot(times, whole, colors=colors, labels=names, alpha=0.65, linewidth=0)
    else:
        for name, column, color in zip(names, columns, colors, strict=True):
            axes.plot(times, column, color=color, label=name, linewidth=1.4)
            axes.fill_between(times, column, color=color, alpha=0.06, linewidth=0)
    if answer.floor is not None:
        axes.axhline(answer.floor, color=BAD, linestyle="--", linewidth=1)
    top = axes.get_ylim()[1] if any(value > 0 for column in columns for value in column) else 1.0
    axes.set_ylim(0, top)
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: answer.unit(value)))
    axes.grid(color=EDGE, linewidth=0.6)
    axes.set_axisbelow(True)
    _frame(axes, answer)
    num_named = answer.num_legend_rows * answer.num_legend_columns
    axes.legend(
        handles=axes.get_legend_handles_labels()[0][:num_named],
        loc="upper left",
        bbox_to_anchor=(-0.16, -0.11),
        ncols=answer.num_legend_columns,
        frameon=False,
        fontsize=6.8,
        handlelength=1.1,
        columnspacing=1.2,
        labelspacing=0.25,
        borderpad=0,
    )


def _heatmap(axes: Axes, answer: Answer) -> None:
    """Draw a heatmap as Grafana does: each row is the difference between neighbouring cumulative buckets."""
    series = sorted((each for _, each in answer.lines), key=_bound)
    moments = [moment for moment, _ in series[-1].points]
    cumulative = [_column(each, moments) for each in series]
    rows = [cumulative[0]]
    rows += [[above - below for below, above in zip(*pair, strict=True)] for pair in pairwise(cumulative)]
    used = [number for number, row in enumerate(rows) if any(value > 0 for value in row)] or [0]
    shown = range(used[0], used[-1] + 1)
    edges = [moment - answer.span[0] for moment in [*moments, moments[-1] + SCRAPE_SECONDS]]
    cells = [[value if value > 0 else math.nan for value in rows[number]] for number in shown]
    mesh = axes.pcolormesh(
        edges, range(len(shown) + 1), cells, cmap="viridis", norm=PowerNorm(0.5), edgecolors=CARD, linewidth=0.3
    )
    labels = [f"≤ {answer.unit(_bound(series[number]))}".replace("≤ inf", "more") for number in shown]
    axes.set_yticks([number + 0.5 for number in range(len(shown))], labels)
    figure = axes.get_figure()
    assert figure is not None
    bar = figure.colorbar(mesh, ax=axes, fraction=0.03, pad=0.02)
    bar.ax.spines["outline"].set_visible(False)
    bar.locator = MaxNLocator(3, integer=True)
    bar.ax.tick_params(length=0, labelsize=6.2)
    _frame(axes, answer)


def _bars(axes: Axes, answer: Answer) -> None:
    """Draw bars, the longest at the top, each with its value."""
    bars = sorted(
        ((name, series.points[-1][1]) for name, series in answer.lines), key=lambda bar: (len(bar[0]), bar[0])
    )
    bars.sort(key=lambda bar: -bar[1])
    names, numbers = [name for name, _ in bars], [value for _, value in bars]
    axes.barh(names, [1.0] * len(bars), color=EDGE, height=0.72)
    axes.barh(names, numbers, color=mpl.colormaps["viridis"](numbers), height=0.72)
    for place, value in enumerate(numbers):
        axes.text(1.03, place, answer.unit(value), va="center", fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xticks([])
    _frame(axes, answer, has_time=False)


def _frame(axes: Axes, answer: Answer, has_time: bool = True) -> None:
    if has_time:
        axes.set_xlim(0, answer.seconds)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 3, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{int(value) // 60}:{int(value) % 60:02d}"))
    axes.tick_params(length=0, labelsize=6.8)
    for side in axes.spines.values():
        side.set_visible(False)


def _bound(series: Series) -> float:
    return float(series.labels["le"])


def _column(series: Series, moments: Sequence[float]) -> list[float]:
    """A series' values at `moments`; NaN where it has none."""
    found = {round(moment, 3): value for moment, value in series.points}
    return [found.get(round(moment, 3), math.nan) for moment in moments]
