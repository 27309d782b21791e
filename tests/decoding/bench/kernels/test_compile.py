"""The kernels compile for devices that are not here, and nothing of them is spilled in a loop."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed: its kernels are not compiled")

PROGRAM = """
from decoding.bench.kernels.compile import CAPABILITIES, NAMES, PARTS
from tests.machine_code import loops_of

SPILLED = 16  # bytes for each item, outside the loops over keys

part, left_out = sys.argv[1], sys.argv[2:]
for capability in CAPABILITIES:
    for case in PARTS[part](capability):
        if capability < case.least:
            continue
        if (NAMES[case.dtype] == "bf16" or part in ("layers", "sampler")) and not any(map(case.name.count, left_out)):
            made = case.compile(capability)
            assert made.spilled <= (SPILLED if part == "attention" else 0), (case.name, capability, made)
            assert not any(loop.num_spills for loop in loops_of(made.cubin)), (case.name, capability, made)
            assert not case.tile or made.product != "fma", (case.name, capability, made)
"""
LEFT_OUT = {
    "attention": ["80", "96", "128, 1", "128, 2", "128, 8", "512"],  # which spill
    "layers": [],
    "products": ["few", "6 bits", "128 share", "32 a scale and"],  # many rows take the most registers; 6 bits spill
    "experts": ["6 bits", "128 share", "32 a scale and"],
}


def compiled(part: str, *left_out: str) -> None:
    """In a process of its own: kernels are not interpreted there."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", f"import sys{PROGRAM}", part, *left_out]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("part", LEFT_OUT)
def test_no_default_tile_spills_registers_and_all_use_tensor_cores(part: str) -> None:
    compiled(part, *LEFT_OUT[part])


@pytest.mark.slow
@pytest.mark.skipif(triton.__version__.startswith("3.6."), reason="Triton 3.6 spills eight bytes of one kernel")
def test_the_samplers_kernels_compile_without_spills() -> None:
    compiled("sampler")
