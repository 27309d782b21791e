"""Describes the machine that figures were measured on: processor, threads, versions.

Invariant: every report has this line, since a speed means nothing without its machine.
"""

from __future__ import annotations

import platform
from importlib.metadata import version

from decoding.kernels.processor import has_feature, multiplies_bytes, processor_name
from decoding.process.machine import cores

VECTORS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx-tile": "AMX"}  # by LLVM's names, narrowest first


def describe_machine() -> str:
    """The machine in one line for the head of a report."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{cores().usable} x {_processor()}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    """Its name and the widest vectors it has, with VNNI where it has that, which decide how quick products are."""
    name = processor_name() or platform.machine()
    has = [shown for feature, shown in VECTORS.items() if has_feature(feature)][-1:]
    if multiplies_bytes():
        has.append("VNNI")
    return f"{name} ({', '.join(has)})" if has else name
