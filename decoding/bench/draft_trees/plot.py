"""Plots the sweeps: tokens per iteration over each setting. Needs matplotlib, which only `dev` installs.

Invariant: every point is a measured `Figures`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from decoding.bench.comparison import Comparison
from decoding.bench.draft_trees.tables import FAMILIES
from decoding.bench.draft_trees.ways import BEST_FIXED, BRANCHINGS, DEPTHS, PRUNINGS, THRESHOLDS, Way, fixed, thresholds
from decoding.bench.tables.figures import Figures
from decoding.bench.tables.report import write_picture
from decoding.bench.tables.table import title

SIZE_INCHES = (10.0, 6.4)


def plot_sweeps(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write an SVG: D, B, τ of fixed trees, (τ_h, τ_l) of dynamic ones, and every method over its mean nodes."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    depth, branching, tau = BEST_FIXED
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sweeps", "font.size": 8}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots(2, 3).ravel()
        _lines(
            axes[0], comparisons, f"depth D (fixed, B={branching}, τ={tau})", DEPTHS, lambda d: fixed(d, branching, tau)
        )
        _lines(
            axes[1], comparisons, f"branching B (fixed, D={depth}, τ={tau})", BRANCHINGS, lambda b: fixed(depth, b, tau)
        )
        _lines(
            axes[2],
            comparisons,
            f"pruning τ (fixed, D={depth}, B={branching})",
            PRUNINGS,
            lambda t: fixed(depth, branching, t),
        )
        _thresholds(axes[3], comparisons)
        for axis, one in zip(axes[4:], comparisons, strict=False):
            _families(axis, one)
        for axis in axes[4 + len(comparisons) :]:
            axis.set_axis_off()
        write_picture(path, figure)


def _lines(
    axis: Any, comparisons: Sequence[Comparison], name: str, values: Sequence[Any], way: Callable[[Any], Way]
) -> None:
    for one in comparisons:
        rows = [_row(one, way(value)) for value in values]
        axis.plot(values, [row.tau for row in rows], marker="o", label=title(one))
    axis.set(xlabel=name, ylabel="tokens per iteration")
    axis.legend()


def _thresholds(axis: Any, comparisons: Sequence[Comparison]) -> None:
    names = [f"{high:g}, {low:g}" for high, low in THRESHOLDS]
    for one in comparisons:
        rows = [_row(one, thresholds(*pair)) for pair in THRESHOLDS]
        axis.plot(names, [row.tau for row in rows], marker="o", linestyle="", label=title(one))
    axis.set(xlabel="τ_h, τ_l (dynamic, paper's rules)", ylabel="tokens per iteration")
    axis.tick_params(axis="x", rotation=45)
    axis.legend()


def _families(axis: Any, one: Comparison) -> None:
    for name, is_in in FAMILIES:
        points = sorted((row.nodes_per_step, row.tau) for row in one.figures if is_in(row.label))
        axis.plot([size for size, _ in points], [tau for _, tau in points], marker=".", label=name)
    axis.set(xlabel="mean verified nodes an iteration", ylabel="tokens per iteration", title=title(one))
    axis.legend()


def _row(one: Comparison, way: Way) -> Figures:
    row = one.find_label(way.label)
    assert row is not None, way.label
    return row
