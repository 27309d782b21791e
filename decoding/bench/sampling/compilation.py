"""The sampler's kernels compiled for GPUs that need not be here, and what they take of one.

`python -m decoding.bench.sampling.compilation 80 90`: a table for these compute capabilities; fails where registers
spill. Not with TRITON_INTERPRET, which leaves nothing to compile.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from decoding.sampling.device import draw, edit, scan, walk
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


class Taken(NamedTuple):
    """By one kernel: registers of a thread, bytes of shared memory of a program, bytes of a thread that spill."""

    registers: int
    shared: int
    spilled: int


def taken(kernel: Any, constants: dict[str, int], capability: int) -> Taken:
    """Compile a kernel."""
    signature = {name: "constexpr" if name in constants else _type_of(name) for name in kernel.arg_names}
    source = ASTSource(kernel, signature, constants)
    options = {"enable_fp_fusion": kernel is not edit.change}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as binary:
        Path(binary.name).write_bytes(compiled.asm["cubin"])
        said = subprocess.run([dump, "--dump-resource-usage", binary.name], capture_output=True, text=True, check=True)
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", said.stdout)
    assert found, said.stdout
    registers, stack, local = (int(number) for number in found.groups())
    return Taken(registers, compiled.metadata.shared, stack + local)


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
            of = taken(kernel, constants, capability)
            num_spilled += of.spilled > 0
            print(f"| {kernel.fn.__name__} | {sizes} | {capability} | {of.registers} | {of.shared} | {of.spilled} |")  # noqa: T201
    sys.exit(num_spilled > 0)


if __name__ == "__main__":
    main()
