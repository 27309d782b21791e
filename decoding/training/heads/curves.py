"""Plots a run: the loss and the agreement of each depth over the steps. Needs matplotlib, which only `dev` installs.

Invariant: lines are measured values, smoothed over `WINDOW` steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from decoding.training.heads.trainer import Progress

SIZE_INCHES = (10.0, 3.4)
WINDOW = 20  # steps


def plot_curves(progress: Progress, path: Path) -> None:
    """Write an SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    has_trees = any(progress.gto)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "curves", "font.size": 8}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots(1, 3 if has_trees else 2)
        _lines(axes[0], progress.depth_losses, "depth")
        axes[0].set(xlabel="step", ylabel="cross-entropy, nats")
        _lines(axes[1], progress.agreements, "depth")
        axes[1].set(xlabel="step", ylabel="likeliest token is the target's")
        if has_trees:
            _lines(axes[2], [[reward - other, length] for _, reward, other, length in progress.gto], "")
            axes[2].legend(["reward above the reference's", "accepted greedily"])
            axes[2].set(xlabel="step", ylabel="tokens a tree")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _lines(axis: Any, rows: list[list[float]], word: str) -> None:
    """One smoothed line for each column."""
    for number, column in enumerate(np.array(rows).T, start=1):
        window = min(WINDOW, len(column))
        smooth = np.convolve(column, np.ones(window) / window, "valid")
        axis.plot(np.arange(window, len(column) + 1), smooth, label=f"{word} {number}")
    if word:
        axis.legend()
