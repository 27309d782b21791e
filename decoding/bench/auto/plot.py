"""Plots the speed-up of drafting and the size of its trees over the number of concurrent requests.

Needs matplotlib, which only `dev` installs. Invariant: every point was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from decoding.bench.auto.tables import Measured
from decoding.bench.tables.report import write_picture
from decoding.bench.variant import NONE
from decoding.drafting.registry import AUTO

SIZE_INCHES = (9.0, 3.2)


def plot_load(measured: Sequence[Measured], path: Path) -> None:
    """Write an SVG with the median over workloads, one line for each target and temperature."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "auto", "font.size": 8}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        speed, nodes = figure.subplots(1, 2)
        for target, temperature in dict.fromkeys((each.target, each.temperature) for each in measured):
            found = [each for each in measured if (each.target, each.temperature) == (target, temperature)]
            loads = sorted({each.at_once for each in found})
            by_load = [[each for each in found if each.at_once == load] for load in loads]
            label = f"{target}, temperature {temperature:g}"
            speed.plot(loads, [median(each.ratio(AUTO, NONE) for each in some) for some in by_load], "o-", label=label)
            sizes = [median(each.middle(AUTO, lambda run: run.nodes_per_step) for each in some) for some in by_load]
            nodes.plot(loads, sizes, "o-", label=label)
        speed.axhline(1.0, color="0.7", linewidth=0.8)
        speed.set_ylabel("tokens/s of auto over none")
        nodes.set_ylabel("drafted nodes a sequence and step")
        for axes in (speed, nodes):
            axes.set_xlabel("requests at once")
            axes.set_xscale("log", base=2)
            axes.set_ylim(bottom=0)
        speed.legend()
        write_picture(path, figure)
