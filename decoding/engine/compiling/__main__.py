"""`python -m decoding.engine.compiling --parent PID [GROUP ...]`: compile group after group into the cache, a line for
each."""

from __future__ import annotations

import argparse
import os
import sys

from decoding.engine.compiling.groups import ATTENTION, LAYERS, methods, run_group
from decoding.process.parent import end_with

POLITE = 10  # on the scale of `nice`, once requests may run beside


def _compile(group: str) -> None:
    run_group(group)
    sys.stdout.write(f"{group}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compiles kernels for a worker, which starts it.")
    parser.add_argument("--parent", type=int, required=True, help="process id of the worker")
    parser.add_argument("groups", nargs="*", help="what to compile instead of what every model may need")
    arguments = parser.parse_args()
    end_with(arguments.parent)
    for group in arguments.groups:
        _compile(group)
    if not arguments.groups:
        for group in (ATTENTION, LAYERS):
            _compile(group)
        os.nice(POLITE)
        for method in methods():
            _compile(method)
