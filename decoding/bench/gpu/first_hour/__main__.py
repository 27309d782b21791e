"""Measures a part of what is worth knowing of a GPU, within a deadline of its own, and writes it as JSON; `page` makes
a section of docs/gpu.md of the files.

Parts: correctness, small (a 0.6B model), large (8B), kernels. Models have random weights, so nothing is downloaded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch

from decoding.bench.gpu.first_hour import correctness, kernels, serving
from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.deadline import Found, Measure, run
from decoding.bench.gpu.first_hour.page import render
from decoding.bench.machine import describe_machine
from decoding.bench.tables.report import write_section

PARTS: dict[str, tuple[Callable[[Bench], dict[str, Measure]], float]] = {
    "correctness": (correctness.measures, 450.0),
    "small": (serving.small, 510.0),
    "large": (serving.large, 570.0),
    "kernels": (kernels.measures, 570.0),
}


def read_options(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.gpu.first_hour", description=__doc__)
    parser.add_argument("part", choices=[*PARTS, "page"])
    parser.add_argument("files", type=Path, nargs="*", help="of page: what the parts have written")
    parser.add_argument("--seconds", type=float, help="the deadline, by default 450 to 570 seconds")
    parser.add_argument("--out", type=Path, help="the file, by default first_hour_PART.json")
    parser.add_argument("--device", default="cuda", help="cpu tries the program out, on tiny shapes")
    parser.add_argument("--page", type=Path, default=Path("docs/gpu.md"))
    return parser.parse_args(given)


def main(given: Sequence[str]) -> int:
    options = read_options(given)
    if options.part == "page":
        parts = [msgspec.json.decode(path.read_bytes(), type=Found) for path in options.files]
        write_section(options.page, "# GPUs\n", "measured", render(parts))
        return 0
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("There is no GPU that torch can use here, so nothing was measured.", file=sys.stderr)  # noqa: T201
        return 1
    measures, seconds = PARTS[options.part]
    where = describe_machine()
    if device.type == "cuda":
        where = f"{torch.cuda.get_device_name(device)}, {where}"
    path = options.out or Path(f"first_hour_{options.part}.json")
    bench = Bench(device, device.type == "cpu")
    found = run(Found(part=options.part, where=where), measures(bench), options.seconds or seconds, path)
    print(f"{path}: found {len(found.found)}, failed {found.failed}, left out {found.left_out}")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
