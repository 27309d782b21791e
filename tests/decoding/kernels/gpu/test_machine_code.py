"""A row's bits must not depend on what is beside it, so both loops of attention compute with the same instructions.

One loop takes the keys that all rows of a tile see, the other the rest, and which of them a key falls in is up to the
tile's other rows. A compiler that fuses a product with a sum in one of them alone changes bits, which no interpreter
shows: so the machine code of devices that are not here is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not compiled")

PROGRAM = """
import json, sys
from decoding.bench.kernels.compile import PARTS
from tests.machine_code import feeds_of_exponentials

capability, name = (int(sys.argv[1]), int(sys.argv[2])), sys.argv[3]
(case,) = (case for case in PARTS["attention"](capability) if case.name == name and case.dtype.itemsize == 2)
print(json.dumps(feeds_of_exponentials(case.compile(capability).cubin)))
"""
SUMMING = {"attend_tiles", "merge_ranges", "normalise", "rotate_and_store", "gate", "multiply", "add_parts", "mean"}
SUMMING |= {"multiply_chosen", "add_chosen"}
LISTING = """
import json, sys
from decoding.bench.kernels.compile import CAPABILITIES, PARTS

cases = [case for capability in CAPABILITIES for part in PARTS if part != "sampler" for case in PARTS[part](capability)]
print(json.dumps([[case.kernel.fn.__name__, case.constants.get("enable_fp_fusion", True)] for case in cases]))
"""


def told(program: str, *arguments: str) -> Any:
    """What the program prints as JSON, in a process of its own: kernels are not interpreted there."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


PLAIN, EVERYTHING, FP8 = (
    f"attend, 128, 4{more}" for more in (" share keys", ", window, cap, sinks", " share keys, fp8")
)
SLOW = pytest.mark.slow  # twenty seconds each
REST = [*product(("8.0", "10.0"), (PLAIN, EVERYTHING)), ("9.0", EVERYTHING), ("9.0", FP8), ("10.0", FP8)]


@pytest.mark.parametrize(("capability", "layer"), [("9.0", PLAIN), *(pytest.param(*each, marks=SLOW) for each in REST)])
def test_both_loops_feed_their_exponentials_alike(capability: str, layer: str) -> None:
    loops = told(PROGRAM, *capability.split("."), layer)
    assert len(loops) == 2
    assert loops[0] == loops[1]
    assert any(name.startswith("FFMA") for name in loops[0])  # a score times its factor, less the largest


def test_nothing_is_fused_in_kernels_whose_bits_are_promised() -> None:
    found = told(LISTING)
    assert {name for name, _ in found} >= SUMMING
    assert [name for name, is_fused in found if name in SUMMING and is_fused] == []
