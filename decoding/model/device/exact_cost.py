"""What a model's exact products cost on its device: its own layers, by torch's products and by ours, replayed.

Layers whose weights are packed, and experts, go through kernels of our own in any case and are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from decoding.costs.exact_cost import ExactCost
from decoding.model.device.capture import Capture, Launch
from decoding.model.device.runner import Stopwatch

# Shape suffixes: M rows, I input width, O output width.
STEP_ROWS = 64
EXACT_ROWS, PLAIN_ROWS = 512, 2048  # of a prompt in a step, exact and otherwise
ROUNDS = 5
Product = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


def exact_cost(
    model: nn.Module, head: nn.Module | None, capture: Capture, new_stopwatch: Callable[[], Stopwatch]
) -> ExactCost:
    """1.0 of what has no plain weights. head: of which a prompt needs few rows."""
    from decoding.weights.device_products import linear as exact  # imports Triton

    layers = [each for each in model.modules() if type(each) is nn.Linear]
    beneath = [each for each in layers if each is not head]

    def seconds(of: Sequence[nn.Linear], product: Product, num_rows: int) -> float:
        return _quickest(capture.note(_products(of, product, num_rows)), new_stopwatch)

    step = seconds(layers, exact, STEP_ROWS) / seconds(layers, F.linear, STEP_ROWS) if layers else 1.0
    if not beneath:
        return ExactCost(step, 1.0)
    exact_seconds, plain_seconds = seconds(beneath, exact, EXACT_ROWS), seconds(beneath, F.linear, PLAIN_ROWS)
    return ExactCost(step, exact_seconds / EXACT_ROWS / (plain_seconds / PLAIN_ROWS))


def _products(layers: Sequence[nn.Linear], product: Product, num_rows: int) -> Launch:
    """All layers' products, one after the other, so that their weights come from memory."""
    first = layers[0].weight
    rows = {
        width: torch.randn(num_rows, width, device=first.device, dtype=first.dtype)
        for width in {each.in_features for each in layers}
    }

    def launch() -> None:
        with torch.inference_mode():
            for each in layers:
                product(rows[each.in_features], each.weight, each.bias)

    return launch


def _quickest(launch: Launch, new_stopwatch: Callable[[], Stopwatch]) -> float:
    launch()
    times = []
    for _ in range(ROUNDS):
        stopwatch = new_stopwatch()
        launch()
        stopwatch.stop()
        times.append(stopwatch.seconds())
    return min(times)
