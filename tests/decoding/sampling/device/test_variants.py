"""No step has a kernel compiled: whatever is asked, Triton takes a variant that was compiled at start."""

from __future__ import annotations

from tests.triton_variants import num_variants

PROGRAM = """
    import numpy as np
    import torch
    from decoding.bench.sampling.cases import random_step
    from decoding.sampling.device.device_sampler import DeviceSampler

    rng, vocab_size, sampler = np.random.default_rng(0), 1003, DeviceSampler(256)
    sampler.warm_up(torch.zeros(70, vocab_size))
    compiled = set(seen)
    for number in range(1000):
        logits_RV, asked = random_step(rng, vocab_size, int(rng.integers(1, 9)))
        sampler.launch(logits_RV, asked)
    late = set(seen) - compiled
    assert not late, late
"""


def test_every_variant_that_a_thousand_steps_launch_was_compiled_at_start() -> None:
    # For ten and for twenty likeliest tokens, and for trees of up to 64 and up to 128 nodes.
    variants = {"mask": 1, "change": 1, "scan": 2, "draw": 1, "walk": 2, "rank": 2, "score": 1}
    assert num_variants(PROGRAM) == variants
