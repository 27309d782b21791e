"""Compiles the sampler's kernels for GPUs that this machine need not have, and prints their resources.

`python -m decoding.bench.sampling.compilation 80 90` prints a table for these compute capabilities, and fails if
registers spill.
"""

from __future__ import annotations

import sys
from typing import Any

from triton.compiler import ASTSource

from decoding.bench.kernels.compiled import Compiled, compile_for
from decoding.kernels.gpu.sampling import draw, edit, scan, walk
from decoding.sampling.device.launch import BLOCK, ENTRIES, FEWEST_NODES

FLOATS = {"logits", "edited", "masses", "noisy", "values"}
DOUBLES = {"numbers", "biases"}
INTEGERS = {"results", "drawn", "masks"}
COUNTS = {"vocab_size", "num_blocks", "first"}
BLOCKS = 128  # of a vocabulary of 152,000
CASES: tuple[tuple[Any, dict[str, int]], ...] = (
    (edit.mask, {"BLOCK": BLOCK}),
    (edit.change, {"BLOCK": ENTRIES}),
    (scan.scan, {"NUM_TOP": 10, "BLOCK": BLOCK}),
    (scan.scan, {"NUM_TOP": 20, "BLOCK": BLOCK}),
    (draw.draw, {"BLOCKS": BLOCKS, "BLOCK": BLOCK}),
    (walk.walk, {"NODES": FEWEST_NODES}),
    (walk.walk, {"NODES": 4 * FEWEST_NODES}),
    (scan.rank, {"NUM_TOP": 10, "BLOCKS": BLOCKS, "PLACES": 1024}),
    (scan.rank, {"NUM_TOP": 20, "BLOCKS": BLOCKS, "PLACES": 2048}),
    (scan.score, {"BLOCK": BLOCK}),
)


def compile_kernel(kernel: Any, constants: dict[str, int], capability: int) -> Compiled:
    signature = {name: "constexpr" if name in constants else _type_of(name) for name in kernel.arg_names}
    options = {"enable_fp_fusion": kernel is not edit.change}
    return compile_for(ASTSource(kernel, signature, constants), capability, options)


def _type_of(name: str) -> str:
    types = {"*fp32": FLOATS, "*fp64": DOUBLES, "*i32": INTEGERS, "i32": COUNTS}
    return next((type_ for type_, names in types.items() if name in names), "*i64")


def main() -> None:
    capabilities = [int(number) for number in sys.argv[1:]] or [80, 90]
    print("| kernel | sizes | compute capability | registers | bytes shared | bytes spilled |\n" + 6 * "|---" + "|")  # noqa: T201
    num_spilled = 0
    for kernel, constants in CASES:
        sizes = ", ".join(f"{name} {value}" for name, value in constants.items())
        for capability in capabilities:
            of = compile_kernel(kernel, constants, capability)
            num_spilled += of.spilled > 0
            print(f"| {kernel.fn.__name__} | {sizes} | {capability} | {of.registers} | {of.shared} | {of.spilled} |")  # noqa: T201
    sys.exit(num_spilled > 0)


if __name__ == "__main__":
    main()
