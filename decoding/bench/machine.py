"""Describes the machine that figures were measured on: processor, threads, versions.

Invariant: every report has this line, since a speed means nothing without its machine.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """The machine in one line for the head of a report."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{os.cpu_count()} x {_processor()}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
