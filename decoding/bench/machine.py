"""Describes the machine that figures were measured on: processor, threads, versions.

Invariant: every report has this line, since a speed means nothing without its machine.
"""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

from decoding.core.process.machine import cores
from decoding.kernels.cpu.lanes import has_feature

VECTORS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx-tile": "AMX"}  # by LLVM's names, narrowest first


def describe_machine() -> str:
    """The machine in one line for the head of a report."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{cores().usable} x {_processor()}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """Its name and the widest vectors it has, with VNNI where it has that, which decide how quick products are."""
    path, name = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    has = [shown for feature, shown in VECTORS.items() if has_feature(feature)][-1:]
    if has_feature("avx512vnni") or has_feature("avxvnni"):
        has.append("VNNI")
    return f"{name} ({', '.join(has)})" if has else name
