"""Compiles a Triton kernel for a GPU that this machine need not have, and reads the resources that it takes.

Triton's wheel contains the assembler, and the tool that reads registers and stack from its output. TRITON_INTERPRET
must not be set, since the interpreter compiles nothing.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

PRODUCTS = ("tcgen05.mma", "wgmma.mma_async", "mma.sync")


class Compiled(NamedTuple):
    """A kernel's resources: registers of a thread, spilled bytes, bytes of shared memory, and its instruction for
    matrix products; and its machine code, an ELF file."""

    registers: int
    spilled: int
    shared: int
    product: str
    cubin: bytes


def compile_for(source: ASTSource, capability: int, options: Mapping[str, Any]) -> Compiled:
    """Compile a kernel. capability: 90 stands for 9.0."""
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    registers, spilled = _resources(made.asm["cubin"])
    products = [name for name in PRODUCTS if name in made.asm["ptx"]]
    return Compiled(registers, spilled, made.metadata.shared, products[0] if products else "fma", made.asm["cubin"])


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers, and bytes of stack and local memory, of compiled code."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)", told)
    assert found, told
    registers, stack, local = map(int, found.groups())
    return registers, stack + local
