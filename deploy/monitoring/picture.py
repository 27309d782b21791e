"""Draws a dashboard as a picture for the documentation, from numbers that Prometheus returns.

Panels lie where Grafana's grid has them; `drawing` draws their insides.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from deploy.monitoring.drawing import CARD, EDGE, Answer, draw, legend_of
from deploy.monitoring.live import SCRAPE_SECONDS, Prometheus
from deploy.monitoring.queries import resolve, targets_of, variables

CAPTION = "Drawn by matplotlib from Prometheus data under a test load; Grafana draws the same queries."
PAGE, INK, FAINT = "#111217", "#d8d9da", "#8e9298"
COLUMN_INCHES, ROW_INCHES, GAP, FOOT = 0.56, 0.36, 0.05, 0.35
LEGEND_LINE = 0.145
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "axes.facecolor": CARD,
    "figure.facecolor": PAGE,
}
DPI = 110


def draw_dashboard(dashboard: Mapping[str, Any], prometheus: Prometheus, span: tuple[float, float], path: Path) -> None:
    """Draw a dashboard. span: first and last moment, in seconds since 1970."""
    values = variables(dashboard, prometheus, span[1] - span[0])
    num_rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    height = num_rows * ROW_INCHES + FOOT
    with mpl.rc_context(STYLE):
        figure = plt.figure(figsize=(24 * COLUMN_INCHES, height), dpi=DPI)
        for panel in dashboard["panels"]:
            lines = []
            for target in targets_of({"title": "", "panels": [panel]}):
                start = span[1] if target.is_instant else span[0]
                found = prometheus.query_range(resolve(target.expr, values), start, span[1], SCRAPE_SECONDS)
                lines += [(legend_of(target.legend, series), series) for series in found]
            _draw_panel(figure, Answer(panel, lines, span))
        figure.text(0.5, 0.12 / height, CAPTION, ha="center", va="bottom", color=FAINT, fontsize=8)
        figure.savefig(path)
        plt.close(figure)


def _draw_panel(figure: Figure, answer: Answer) -> None:
    width, height = (float(inches) for inches in figure.get_size_inches())
    grid, title = answer.panel["gridPos"], answer.panel["title"]
    left, bottom = grid["x"] * COLUMN_INCHES + GAP, height - (grid["y"] + grid["h"]) * ROW_INCHES + GAP
    wide, high = grid["w"] * COLUMN_INCHES - 2 * GAP, grid["h"] * ROW_INCHES - 2 * GAP
    if answer.panel["type"] == "row":
        figure.text(left / width, (bottom + 0.08) / height, title, fontsize=9.5, fontweight="bold")
        return
    corner, size = (left / width, bottom / height), (wide / width, high / height)
    figure.add_artist(Rectangle(corner, *size, facecolor=CARD, edgecolor=EDGE, linewidth=0.8, zorder=-1))
    figure.text((left + 0.09) / width, (bottom + high - 0.08) / height, title, va="top", fontsize=8.2)
    before, below, after, above = _margins(answer)
    axes = figure.add_axes(
        (
            (left + before) / width,
            (bottom + below) / height,
            (wide - before - after) / width,
            (high - below - above) / height,
        )
    )
    draw(axes, answer)


def _margins(answer: Answer) -> tuple[float, float, float, float]:
    """Inches left, below, right and above the axes inside a panel."""
    match answer.panel["type"]:
        case "stat":
            return (0.0, 0.0, 0.0, 0.25)
        case "timeseries":
            return (0.72, 0.3 + LEGEND_LINE * answer.num_legend_rows, 0.15, 0.36)
        case "heatmap":
            return (0.62, 0.28, 0.42, 0.36)
        case _:
            return (0.75, 0.12, 0.55, 0.36)
