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
from functools import cache
from itertools import product
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not compiled")

PROGRAM = """
import json, sys
from decoding.bench.kernels.compile import PARTS
from tests.machine_code import loops_of

capability, name = (int(sys.argv[1]), int(sys.argv[2])), sys.argv[3]
cases = [case for case in PARTS["attention"](capability) if case.least <= capability and case.dtype.itemsize == 2]
made = [case.compile(capability) for case in cases if case.name.partition(", ")[2] == name]
print(json.dumps([[each.spilled, [loop._asdict() for loop in loops_of(each.cubin)]] for each in made]))
"""
SUMMING = {"attend_tiles", "merge_ranges", "normalise", "rotate_and_store", "gate", "multiply", "add_parts", "mean"}
SUMMING |= {"multiply_chosen", "add_chosen"}
LISTING = """
import json, sys
from decoding.bench.kernels.compile import CAPABILITIES, PARTS

cases = [case for capability in CAPABILITIES for part in PARTS if part != "sampler" for case in PARTS[part](capability)]
print(json.dumps([[case.kernel.fn.__name__, case.constants.get("enable_fp_fusion", True)] for case in cases]))
"""


@cache
def told(program: str, *arguments: str) -> Any:
    """What the program prints as JSON, in a process of its own: kernels are not interpreted there."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


PLAIN, EVERYTHING, FP8 = (f"128, 4{more}" for more in (" share keys", ", window, cap, sinks", " share keys, fp8"))
SLOW = pytest.mark.slow  # twenty seconds each
REST = [*product(("8.0", "10.0"), (PLAIN, EVERYTHING)), ("9.0", EVERYTHING), ("9.0", FP8), ("10.0", FP8)]


@pytest.mark.parametrize(("capability", "layer"), [("9.0", PLAIN), *(pytest.param(*each, marks=SLOW) for each in REST)])
def test_all_loops_over_keys_of_tiles_of_any_size_compute_alike(capability: str, layer: str) -> None:
    """What feeds their exponentials, for each warp, and what multiplies their matrices."""
    made = told(PROGRAM, *capability.split("."), layer)
    assert len(made) == (2 if capability == "9.0" else 1)  # tiles of many pairs
    loops = [loop for _, loops in made for loop in loops]
    assert len(loops) == 2 * len(made)
    assert all(loop["feeds"] == loops[0]["feeds"] for loop in loops)
    assert all(loop["products"] == loops[0]["products"] for loop in loops)
    assert len(loops[0]["products"]) >= 1
    assert any(name.startswith("FFMA") for name in loops[0]["feeds"])  # a score times its factor, less the largest


def test_keys_are_copied_by_16_bytes_two_blocks_ahead_and_nothing_is_spilled() -> None:
    """On sm_90: 64 keys and values of 128 numbers a block, 32 KB, by 128 threads or by 256."""
    made = told(PROGRAM, "9", "0", PLAIN)
    assert [spilled for spilled, _ in made] == [0, 0]
    (usual, listed), many = made[0][1], made[1][1]
    for loop, num_copies in ((usual, 16), (many[0], 8), (many[1], 8)):
        (copy,) = loop["copies"].items()
        assert copy == ("LDGSTS.E.BYPASS.128", num_copies)
        assert loop["waits"] == [2]  # for the older of two blocks on their way, each a group of keys and one of values
    assert listed["copies"] == {}  # of paths, which are few
    assert all(loop["num_spills"] == 0 for loop in (usual, listed, *many))


def test_nothing_is_fused_in_kernels_whose_bits_are_promised() -> None:
    found = told(LISTING)
    assert {name for name, _ in found} >= SUMMING
    assert [name for name, is_fused in found if name in SUMMING and is_fused] == []
