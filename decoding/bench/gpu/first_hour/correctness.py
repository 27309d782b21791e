"""Whether this machine can run the kernels, what it could do at best, and whether the kernels are right on it."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.deadline import Measure
from decoding.kernels.gpu.toolchain import why_no_triton

PACKAGES = ("torch", "transformers", "triton", "llvmlite", "numpy", "msgspec", "accelerate")
TESTS = ("tests/decoding/attention/triton", "tests/decoding/sampling/device", "tests/decoding/cache/test_kv_store.py")


def measures(bench: Bench) -> dict[str, Measure]:
    return {
        "machine": lambda: machine(bench),
        "ceilings": lambda: ceilings(bench),
        "sampler": lambda: sampler(bench),
        "kernel tests": lambda: tests(bench, *TESTS, "-m", "not slow"),
        "tests marked cuda": lambda: tests(bench, "tests/decoding", "-m", "cuda"),
    }


def machine(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "why_no_triton": why_no_triton()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    if bench.device.type == "cuda":
        properties = torch.cuda.get_device_properties(bench.device)
        found |= {"device": properties.name, "memory": properties.total_memory, "cuda": torch.version.cuda}
        found |= {"processors": properties.multi_processor_count, "capability": [properties.major, properties.minor]}
    return found


def ceilings(bench: Bench) -> dict[str, float]:
    """Bytes a second of a copy, read and written, and operations a second of a large product."""
    size, width = bench.count(2**30, 2**16), bench.count(8192, 64)
    source, dtype = torch.randint(0, 100, (size,), dtype=torch.int8, device=bench.device), torch.float32
    target = torch.empty_like(source)
    if bench.device.type == "cuda":
        dtype = torch.bfloat16
    left, right = (torch.randn(width, width, device=bench.device).to(dtype) for _ in range(2))
    copy, product = bench.seconds(lambda: target.copy_(source)), bench.seconds(lambda: left @ right)
    return {"copy_bytes_a_second": 2 * size / copy, "product_operations_a_second": 2 * width**3 / product}


def sampler(bench: Bench) -> dict[str, int]:
    """Tokens that the device's sampler drew, and those that the host would have drawn otherwise."""
    from decoding.bench.sampling.cases import random_step
    from decoding.sampling.device.device_sampler import DeviceSampler
    from decoding.sampling.device.launch import BLOCK
    from decoding.sampling.sampler import HostSampler

    rng, rows, wrong = np.random.default_rng(0), 0, 0
    device_sampler = DeviceSampler(256 if bench.is_small else BLOCK)
    while rows < bench.count(3000, 4):
        vocab_size = int(np.exp(rng.uniform(np.log(1000), np.log(bench.count(152_000, 1200)))))
        logits_RV, asked = random_step(rng, vocab_size, bench.count(32, 4))
        on_device = device_sampler.launch(logits_RV.to(bench.device), asked)
        on_host = HostSampler().launch(logits_RV, asked)
        drawn = [on_device.collect(place) for place in range(len(asked))]  # before processors follow the walks
        for place, found in enumerate(drawn):
            expected = on_host.collect(place).verdict
            assert expected is not None
            assert found.verdict is not None
            rows += len(expected.tokens)
            wrong += expected.tokens.tolist() != found.verdict.tokens.tolist()
    return {"rows": rows, "sequences_that_differ": wrong}


def tests(bench: Bench, *arguments: str) -> dict[str, Any]:
    """How a part of the tests ended, and the end of what they said."""
    if find_spec("pytest") is None:
        return {"left_out": "pytest is not installed"}
    more = ["--version"] if bench.is_small else ["-q", "-x", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *more, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return {"status": done.returncode, "said": (done.stdout + done.stderr)[-1500:]}
