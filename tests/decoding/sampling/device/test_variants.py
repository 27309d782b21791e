"""No step has a kernel compiled: whatever is asked, Triton takes a variant that was compiled at start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from textwrap import dedent

# Triton's own key of a variant is that of the arguments: their types, values of 1, and whether they divide by 16.
PROGRAM = dedent(
    """
    import json
    from collections import Counter
    import numpy as np
    import torch
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime import jit
    from decoding.bench.sampling.cases import random_step
    from decoding.sampling.device.device_sampler import DeviceSampler

    backend, binders, seen = make_backend(GPUTarget("cuda", 90, 32)), {}, Counter()

    def noted(kernel, *arguments, grid, warmup, **options):
        if kernel not in binders:
            binders[kernel] = jit.create_function_from_signature(kernel.signature, kernel.params, backend)
        _, variant, given = binders[kernel](*arguments, **options)
        seen[kernel.__name__, str(variant), str(given)] += 1

    jit.JITFunction.run = noted
    rng, vocab_size, sampler = np.random.default_rng(0), 1003, DeviceSampler(256)
    sampler.warm_up(torch.zeros(70, vocab_size))
    compiled = set(seen)
    for number in range(1000):
        logits_RV, asked = random_step(rng, vocab_size, int(rng.integers(1, 9)))
        sampler.launch(logits_RV, asked)
    late = set(seen) - compiled
    assert not late, late
    print(json.dumps(Counter(name for name, *_ in seen)))
    """
)


def test_every_variant_that_a_thousand_steps_launch_was_compiled_at_start() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    # For ten and for twenty likeliest tokens, and for trees of up to 64 and up to 128 nodes.
    variants = {"mask": 1, "change": 1, "scan": 2, "draw": 1, "walk": 2, "rank": 2, "score": 1}
    assert json.loads(done.stdout) == variants
