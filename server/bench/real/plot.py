"""Plots what the page of real models tells of one request at a time: a panel for each model, a place for each workload.

Needs matplotlib, which only `dev` installs. Invariant: every point was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from decoding.bench.tables.report import write_picture
from decoding.training.public_prompts import PROMPT_SETS
from server.bench.real.figures import AUTO, NONE, Run
from server.bench.real.tables import in_order

PANEL_INCHES = (7.0, 2.6)
SIZES = {AUTO: 60, NONE: 0}  # of points; others have OTHER_SIZE
OTHER_SIZE = 16
TICKS = (0.5, 1, 2, 4, 8, 16)


def plot_runs(runs: Sequence[Run], path: Path) -> None:
    """Write an SVG: the speed of each method over plain decoding."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    shown = [run for run in runs if any(row.to_plain for row in run.rows)]
    methods = list(dict.fromkeys(row.method for run in shown for row in run.rows if row.method != NONE))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "real", "font.size": 8}):
        figure = Figure(figsize=(PANEL_INCHES[0], PANEL_INCHES[1] * max(1, len(shown))), layout="constrained")
        panels = figure.subplots(max(1, len(shown)), 1, squeeze=False)[:, 0]
        for run, axes in zip(shown, panels, strict=False):
            _panel(run, methods, axes)
        if shown:
            panels[0].legend(loc="upper right", ncols=len(methods), fontsize=6)
        write_picture(path, figure)


def _panel(run: Run, methods: Sequence[str], axes: Any) -> None:
    places = [setting for setting in in_order(run) if setting.at_once == 1]
    for color, method in enumerate(methods):
        found = [(place, run.of(setting).get(method)) for place, setting in enumerate(places)]
        points = [(place, row.to_plain.times) for place, row in found if row and row.to_plain]
        if points:
            sizes = SIZES.get(method, OTHER_SIZE)
            axes.scatter(*zip(*points, strict=True), s=sizes, color=f"C{color}", alpha=0.7, label=method)
    axes.axhline(1.0, color="0.7", linewidth=0.8)
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    labels = [f"{PROMPT_SETS[setting.workload].title}\nT={setting.temperature:g}" for setting in places]
    axes.set_xticks(range(len(places)), labels, fontsize=6)
    axes.set_title(f"{run.model}, {run.weights}", loc="left", fontsize=8)
    axes.set_ylabel("× none")
