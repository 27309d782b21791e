"""What the machine has, what it could do at best, and how long torch's products of an 8B's shapes take."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
import torch.nn.functional as F

from decoding.bench.gpu.first_hour.bench import Bench
from decoding.bench.gpu.first_hour.kernels import products
from decoding.bench.gpu.first_hour.record import Record
from decoding.kernels.gpu.toolchain import why_no_triton

PACKAGES = ("torch", "transformers", "triton", "llvmlite", "numba", "numpy", "msgspec", "accelerate", "fastapi")


def measure(bench: Bench, record: Record) -> None:
    record.measure("machine", lambda: machine(bench))
    record.measure("ceilings", lambda: ceilings(bench))
    record.measure("products of torch, us", lambda: products(bench, F.linear))


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
    source = torch.randint(0, 100, (size,), dtype=torch.int8, device=bench.device)
    target = torch.empty_like(source)
    left, right = (torch.randn(width, width, device=bench.device).to(bench.dtype) for _ in range(2))
    copy, product = bench.queued_seconds([lambda: target.copy_(source)]), bench.queued_seconds([lambda: left @ right])
    return {"copy_bytes_a_second": 2 * size / copy, "product_operations_a_second": 2 * width**3 / product}
