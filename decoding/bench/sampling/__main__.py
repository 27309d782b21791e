"""Compares the samplers over random steps until a given number of tokens is drawn, and prints the counts."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections import Counter

import numpy as np
import torch

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported

from decoding.bench.sampling.cases import random_step  # noqa: E402
from decoding.core.sampling_params import SamplingParams  # noqa: E402
from decoding.sampling.asked import Asked, Drawn  # noqa: E402
from decoding.sampling.device.device_sampler import DeviceSampler  # noqa: E402
from decoding.sampling.device.launch import BLOCK  # noqa: E402
from decoding.sampling.sampler import HostSampler  # noqa: E402

VOCAB_SIZES = 1_000, 152_000  # drawn evenly on a logarithmic scale
STEP_ROWS = 32


def main() -> None:
    parser = ArgumentParser(prog="python -m decoding.bench.sampling", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000, help="rows drawn from, at least")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, counts = np.random.default_rng(options.seed), Counter[str]()
    with np.errstate(all="ignore"):  # the interpreter computes with infinities, like a GPU
        while counts["rows"] < options.rows:
            compare_step(rng, counts)
    print("\n".join(f"{count:8d} {name}" for name, count in counts.items()))  # noqa: T201
    sys.exit(counts["tokens that differ"] > 0)


def compare_step(rng: np.random.Generator, counts: Counter[str]) -> None:
    """Draw one random step with both samplers and compare."""
    vocab_size = int(np.exp(rng.uniform(*np.log(VOCAB_SIZES))))
    logits_RV, asked = random_step(rng, vocab_size, STEP_ROWS)
    block_len = BLOCK if HAS_GPU else 1 << int(np.log2(vocab_size / rng.uniform(0.5, 6)))
    on_device = DeviceSampler(block_len).launch(logits_RV.to("cuda" if HAS_GPU else "cpu"), asked)
    on_host = HostSampler().launch(logits_RV, asked)
    drawn = [on_device.collect(place) for place in range(len(asked))]  # before processors follow the walks
    counts["sequences"] += len(asked)
    counts["sequences that the host answered for"] += on_device.num_on_host
    for place, each in enumerate(asked):
        count(each, on_host.collect(place), drawn[place], counts)


def count(asked: Asked, expected: Drawn, drawn: Drawn, counts: Counter[str]) -> None:
    assert expected.verdict is not None
    assert drawn.verdict is not None
    tokens, others = expected.verdict.tokens.tolist(), drawn.verdict.tokens.tolist()
    counts["rows"] += len(tokens)
    for kind in kinds(asked.request.sampling):
        counts[f"of them {kind}"] += len(tokens)
    if tokens != others:
        counts["tokens that differ"] += 1
        print(asked.request.sampling, tokens, others)  # noqa: T201


def kinds(asked: SamplingParams) -> list[str]:
    """The names of the options that a sequence uses."""
    named = {
        "greedy": asked.temperature == 0,
        "with top-k": asked.temperature > 0 and asked.top_k > 0,
        "with top-p": asked.temperature > 0 and asked.top_p < 1,
        "with top-k and top-p": asked.temperature > 0 and asked.top_k > 0 and asked.top_p < 1,
        "with min-p": asked.temperature > 0 and asked.min_p > 0,
        "with penalties": bool(
            asked.presence_penalty or asked.frequency_penalty or asked.repetition_penalty != 1
        ),
        "with bias": bool(asked.logit_bias),
        "with a mask": asked.allowed_token_ids is not None,
        "with bad words or min_tokens": bool(asked.bad_words or asked.min_tokens),
    }  # fmt: skip
    return [kind for kind, is_so in named.items() if is_so]


if __name__ == "__main__":
    main()
