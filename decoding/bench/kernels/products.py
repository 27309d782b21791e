"""How fast packed weights are multiplied, beside how fast memory is read: `python -m decoding.bench.kernels.products`.

Kinds are those of GGUF files, with random blocks, in the two shapes of a 1.5B's MLP, more of them than caches hold. A
kernel that reads as fast as the memory gives is as quick as can be; a slower one is held up by its arithmetic.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from decoding.bench.tables.table import table
from decoding.weights.groups import Groups, groups_of
from decoding.weights.kinds import KINDS, Kind
from decoding.weights.numbers.grouped_codes import GroupedCodes

# Shape suffixes: M rows, I input width.
SHAPES = ((8960, 1536), (1536, 8960))  # outputs and inputs
USUAL_KINDS = "Q4_K,Q6_K,Q5_0,Q8_0,Q4_1"
NUM_BYTES = 1 << 27  # of each kind's weights: more than caches hold
SLICE_ROWS = 64
LARGEST_HALF = 0x2FFF  # the bits of a float16 of 0.125


def layer_of(kind: Kind, shape: tuple[int, int], seed: int) -> GroupedCodes:
    """A matrix of random blocks."""
    num_outputs, width = shape
    random = np.random.default_rng(seed)

    def slices() -> Iterator[Groups]:
        for start in range(0, num_outputs, SLICE_ROWS):
            num_rows = min(SLICE_ROWS, num_outputs - start)
            size = (num_rows * width // kind.values, kind.num_bytes // 2)
            blocks = torch.from_numpy(random.integers(0, LARGEST_HALF, size, np.uint16).view(np.uint8))
            yield groups_of(kind.unpack()(blocks), num_rows, kind.bits, kind.group)

    return GroupedCodes(slices(), shape, None, torch.float32)


def layers_of(kind: Kind, shapes: Sequence[tuple[int, int]], num_bytes: int) -> list[GroupedCodes]:
    """Of all shapes in turn, at least so many bytes."""
    layers: list[GroupedCodes] = []
    while sum(layer.num_bytes for layer in layers) < num_bytes:
        layers += [layer_of(kind, shape, len(layers) + place) for place, shape in enumerate(shapes)]
    return layers


def seconds_of(run: Callable[[], object], rounds: int) -> float:
    """Of the quickest round."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times)


def speeds(layers: Sequence[GroupedCodes], num_rows: int, rounds: int) -> float:
    """Thousand million bytes of weights a second."""
    inputs = {layer.shape[1]: torch.randn(num_rows, layer.shape[1]) for layer in layers}
    seconds = seconds_of(lambda: [layer.multiply(inputs[layer.shape[1]]) for layer in layers], rounds)
    return sum(layer.num_bytes for layer in layers) / seconds / 1e9


def measured(
    kinds: Sequence[str], counts: Sequence[int], threads: Sequence[int], rounds: int, num_bytes: int = NUM_BYTES
) -> str:
    """A table of Markdown."""
    numbers, rows = torch.ones(num_bytes // 4), []
    reading = {}
    for count in threads:
        torch.set_num_threads(count)
        reading[count] = numbers.nbytes / seconds_of(numbers.sum, rounds) / 1e9
        rows.append(["memory alone", "", str(count), *[f"{reading[count]:.1f}"] * len(counts)])
    for name in kinds:
        layers = layers_of(KINDS[name], SHAPES, num_bytes)
        bits = 8 * layers[0].num_bytes / (layers[0].shape[0] * layers[0].shape[1])
        for count in threads:
            torch.set_num_threads(count)
            found = [speeds(layers, num_rows, rounds) for num_rows in counts]
            rows.append([name, f"{bits:.2f}", str(count), *(f"{each:.1f}" for each in found)])
    head = ("GB/s", "bits a weight", "threads", *(f"{count} rows" for count in counts))
    return table(head, rows)


def _numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.kernels.products", description=__doc__)
    parser.add_argument("--kinds", default=USUAL_KINDS, help="apart by commas")
    parser.add_argument("--rows", type=_numbers, default="1,2,4,8,16", help="of the input, apart by commas")
    parser.add_argument("--threads", type=_numbers, default="1,2", help="apart by commas")
    parser.add_argument("--rounds", type=int, default=5, help="of which the quickest counts")
    chosen = parser.parse_args()
    sys.stdout.write(measured(chosen.kinds.split(","), chosen.rows, chosen.threads, chosen.rounds) + "\n")


if __name__ == "__main__":
    main()
