"""Measures at load up to how many rows our kernel of panels is quicker than oneDNN, if both give the same bits.

Layers of one shape are measured in turn, so that their weights come from memory as in a step; on one thread and in its
processor time, which other processes disturb least.
Invariant: a layer's results have the same bits whatever was measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from decoding.kernels.cpu.program import MOST_ROWS, one_thread
from decoding.weights.numbers.float_panels import TRIAL_ROWS, FloatPanels, Multiply, fitting_panels
from decoding.weights.numbers.onednn_floats import OneDnnFloats

# Shape suffixes: M rows, I input width, O output width.
COUNTS = (1, 4, 16, 64, 256, MOST_ROWS)  # the numbers of rows that are timed
ROUNDS = 3  # the quickest counts
MOST_BYTES = 1 << 26  # weights of the layers that are timed together: more than caches hold
MOST_WORK = 1 << 29  # multiply-adds of the layers timed together (at least one): many rows hide where weights lie
LONGEST = 1 << 34  # numbers of rows that need more multiply-adds than this in one layer are not timed
SHORTEST = 1e-9  # seconds: a clock of the thread's time may stand still meanwhile
# Our kernel may take so many times as long as oneDNN: rows beyond its limit leave the fused forward, are padded, and
# need compiled code for their number.
LEEWAY = 1.15
Clock = Callable[[], float]


def choose_readers(layers: Sequence[OneDnnFloats], clock: Clock = time.thread_time) -> None:
    """Choose for each layer up to how many rows our kernel multiplies. Layers of one shape get the same choice."""
    shapes: dict[object, list[OneDnnFloats]] = {}
    for layer in layers:
        shapes.setdefault(layer.code_shape, []).append(layer)
    with torch.inference_mode():
        for alike in shapes.values():
            readers = _all_panels(alike)
            if readers:
                with one_thread():
                    most_rows = most_rows_worth(readers, [layer.multiply_at_once for layer in alike], alike[0], clock)
                for layer, panels in zip(alike, readers, strict=True):
                    layer.read_panels(panels, most_rows)


def most_rows_worth(
    readers: Sequence[FloatPanels], others: Sequence[Multiply], layer: OneDnnFloats, clock: Clock
) -> int:
    """The number of rows up to which `readers` gain most over `others` in total; 0 if they gain nothing.

    layer: one of these layers, which all have its shape.
    """
    size = math.prod(layer.shape)
    counts = [count for count in COUNTS if size * count <= LONGEST] or COUNTS[:1]
    gain, most_gain, most_rows = 0.0, 0.0, 0
    for count in counts:
        num_layers = max(1, min(MOST_BYTES // (size * layer.dtype.itemsize), MOST_WORK // (size * count)))
        both: list[list[Multiply]] = [[each.multiply for each in readers[:num_layers]], list(others[:num_layers])]
        rows_MI = torch.ones(count, layer.shape[1], dtype=layer.dtype)
        ours, theirs = _quickest(both, rows_MI, clock)
        gain += math.log(LEEWAY * theirs / ours)
        if gain > most_gain:
            most_gain, most_rows = gain, count
    return COUNTS[-1] if most_rows == counts[-1] else most_rows


def _quickest(kinds: Sequence[Sequence[Multiply]], rows_MI: torch.Tensor, clock: Clock) -> list[float]:
    """For each kind, the sum of its layers' quickest seconds for the rows; kinds are timed in turns."""
    seconds = [[math.inf] * len(kind) for kind in kinds]
    for _ in range(ROUNDS):
        for kind, kind_seconds in zip(kinds, seconds, strict=True):
            for place, multiply in enumerate(kind):
                started = clock()
                multiply(rows_MI)
                kind_seconds[place] = min(kind_seconds[place], clock() - started)
    return [max(sum(kind_seconds), SHORTEST) for kind_seconds in seconds]


def _all_panels(alike: Sequence[OneDnnFloats]) -> list[FloatPanels]:
    """The panels of these layers of one shape; empty if one cannot be read or gives other bits."""
    first = alike[0]
    fitting = fitting_panels(first.packed_weight, first.bias_O, first.shape, first.dtype, first.multiply_at_once)
    if fitting is None:
        return []
    rows_MI = torch.randn(TRIAL_ROWS, first.shape[1], generator=torch.Generator().manual_seed(1)).to(first.dtype)
    found = [fitting]
    for layer in alike[1:]:
        panels = FloatPanels(layer.packed_weight, layer.bias_O, layer.shape, layer.dtype, fitting.block)
        if not torch.equal(panels.multiply(rows_MI), layer.multiply_at_once(rows_MI)):
            return []
        found.append(panels)
    return found
