"""Which variants of Triton's kernels a program launches, without a GPU.

Triton's own key of a variant is that of the arguments: their types, values of 1, and whether they divide by 16. The
program runs in a process of its own, since kernels that are interpreted here have no such keys.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import dedent

NOTING = """
import json
from collections import Counter
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime import jit

backend, binders, seen = make_backend(GPUTarget("cuda", 90, 32)), {}, Counter()

def noted(kernel, *arguments, grid, warmup, **options):
    if kernel not in binders:
        binders[kernel] = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
    _, variant, given = binders[kernel](*arguments, **options)
    seen[kernel.__name__, str(variant), str(given)] += 1

jit.JITFunction.run = noted
"""
COUNTING = "print(json.dumps(Counter(name for name, *_ in seen)))"


def num_variants(program: str) -> dict[str, int]:
    """The number of variants of each kernel that the program launches, by its name. In the program `seen` counts
    launches by kernel and variant."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", f"{NOTING}{dedent(program)}\n{COUNTING}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout)
    return found
