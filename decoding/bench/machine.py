"""What the figures were measured on and with: processor, threads, versions.

Invariant: every report carries this line, since a speed without its machine says nothing.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def describe_machine() -> str:
    """One line for the head of a report."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{os.cpu_count()} x {_processor()}; Python {platform.python_version()}, {versions}"


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.is_file():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
