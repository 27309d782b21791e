"""Describes the machine that figures were measured on: processor, threads, versions.

Invariant: every report has this line, since a speed means nothing without its machine.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path

VECTORS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX"}  # by /proc/cpuinfo's flags, narrowest first
VNNI = "VNNI"


def describe_machine() -> str:
    """The machine in one line for the head of a report."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{os.cpu_count()} x {_processor()}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """Its name and the widest vectors it has, with VNNI where it has that, which decide how quick products are."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    told = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = told.get("model name") or platform.processor() or platform.machine()
    flags = told.get("flags", "").split()
    has = [shown for flag, shown in VECTORS.items() if flag in flags]
    return f"{name} ({', '.join(has[-1:] + [VNNI] * any('vnni' in flag for flag in flags))})" if has else name
