"""`python -m decoding.engine.compiling --parent PID`: compile group after group into the cache, a line for each."""

from __future__ import annotations

import argparse
import os
import sys

from decoding.core.parent import end_with
from decoding.engine.compiling.groups import ATTENTION, methods, run_group

POLITE = 10  # on the scale of `nice`, once requests may run beside


def _compile(group: str) -> None:
    run_group(group)
    sys.stdout.write(f"{group}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compiles kernels for a worker, which starts it.")
    parser.add_argument("--parent", type=int, required=True, help="process id of the worker")
    end_with(parser.parse_args().parent)
    _compile(ATTENTION)
    os.nice(POLITE)
    for method in methods():
        _compile(method)
