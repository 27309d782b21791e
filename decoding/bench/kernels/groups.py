"""How long each group of kernels takes to compile where nothing is kept, in processor seconds:
`python -m decoding.bench.kernels.groups [GROUP ...]`. Without names: those of every
start.

Reads a process's time where Linux keeps it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from decoding.engine.compiling.groups import ATTENTION, LAYERS, PLAIN, methods
from decoding.kernels.cache import VARIABLE


def compiled(groups: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Each group with its processor seconds, one after the other in one process, so that what groups share counts for
    the first. The first has the imports too."""
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-m", "decoding.engine.compiling", "--parent", str(os.getpid()), *groups)
        with subprocess.Popen(
            command, env=os.environ | {VARIABLE: folder}, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            before = 0.0
            for line in process.stdout:
                now = _processor_seconds(process.pid)
                yield line.strip(), now - before
                before = now


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*")
    arguments = parser.parse_args()
    for group, seconds in compiled(arguments.groups or [ATTENTION, LAYERS, PLAIN, *methods()]):
        sys.stdout.write(f"{group:<16}{seconds:8.1f}\n")
        sys.stdout.flush()
