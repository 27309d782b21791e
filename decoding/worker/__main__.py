"""`python -m decoding.worker`: the process that the server starts.

It imports everything and loads kernels, then waits for a line on its standard input, an EngineConfig as JSON, and loads
the model that this names. So the server can start it before it is needed.
"""

from __future__ import annotations

import gc
import logging
import os
import sys

from decoding.core.kernel_cache import is_complete
from decoding.core.parent import end_with
from decoding.engine.compiling.compiler import Compiler
from decoding.worker.allocator import settle_allocator
from decoding.worker.arguments import read_arguments

if __name__ == "__main__":
    arguments = read_arguments()
    end_with(arguments.parent)  # first of all, since what follows imports for seconds
    settle_allocator()  # before there are threads
    gc.disable()  # imported objects stay; looking through them again and again takes a quarter of the time
    compiler = None if is_complete() else Compiler()  # compiles beside what follows
    from decoding.engine.compiling.kernels import Kernels
    from decoding.worker.worker import run

    kernels = Kernels(compiler)
    kernels.load()
    gc.freeze()
    gc.enable()
    line = sys.stdin.readline()
    status = run(arguments, line, kernels) if line else 0
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # taking a model apart object by object takes seconds and serves nobody
