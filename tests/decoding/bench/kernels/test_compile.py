"""The attention kernel compiles for devices that are not here, and nothing of it is spilled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not compiled")

PROGRAM = """
import torch
from decoding.bench.kernels.compile import CAPABILITIES, FEATURES, PACKINGS
from decoding.bench.kernels.compile import compile_attend, compile_experts, compile_layer, compile_move, compile_pairs
from decoding.bench.kernels.compile import compile_product, compile_rows, layer_of

for width in (64, 128, 256):
    for capability in CAPABILITIES:
        made = compile_attend(layer_of(4, width, width, **FEATURES), torch.bfloat16, capability)
        assert made.spilled == 0, (width, capability, made)
        assert made.product != "fma", (width, capability, made)
for capability in CAPABILITIES:
    assert compile_move(torch.bfloat16, capability).spilled == 0
    small = [*compile_rows(torch.bfloat16, capability), *compile_pairs(torch.bfloat16, capability)]
    for dtype in (torch.bfloat16, torch.float32):
        small += compile_layer(dtype, capability).values()
    assert all(each.spilled == 0 for each in small), (capability, small)
    for name in ("exact", "4 bits, 16 a scale and minimum", "8 bits, 32 share a scale"):
        many = compile_product(torch.bfloat16, capability, True, PACKINGS[name])  # which takes the most registers
        for made in (many, compile_experts(torch.bfloat16, capability, PACKINGS[name])):
            assert made.spilled == 0, (name, capability, made)
            assert made.product != "fma", (name, capability, made)
"""


@pytest.mark.slow
def test_no_default_tile_spills_registers_and_all_use_tensor_cores() -> None:
    """In a process of its own: kernels are not interpreted there."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
