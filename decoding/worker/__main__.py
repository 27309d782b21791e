"""`python -m decoding.worker`: the process that the server starts.

It imports everything and loads kernels, then waits for a line on its standard input, an EngineConfig as JSON, and loads
the model that this names. So the server can start it before it is needed.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from functools import partial

from decoding.engine.compiling.compiler import Compiler
from decoding.kernels.cache import is_complete
from decoding.process.parent import end_with
from decoding.worker.allocator import settle_allocator
from decoding.worker.arguments import PATIENT, WorkerArguments, read_arguments
from decoding.worker.patience import patiently


def _prepare(compiler: Compiler | None) -> Callable[[WorkerArguments, str], int]:
    """Import everything and load kernels, which takes seconds. Returns what serves a model, which a line names."""
    from decoding.engine.compiling.kernels import Kernels
    from decoding.worker.worker import run

    kernels = Kernels(compiler)
    kernels.load()
    return partial(run, kernels=kernels)


if __name__ == "__main__":
    arguments = read_arguments()
    end_with(arguments.parent)  # first of all, since what follows imports for seconds
    settle_allocator()  # before there are threads
    gc.disable()  # imported objects stay; looking through them again and again takes a quarter of the time
    compiler = None if is_complete() else Compiler()  # compiles beside what follows
    prepare = partial(_prepare, compiler)
    serve = patiently(prepare, sys.stdin) if arguments.is_patient else prepare()
    if serve is None:  # the line is there: nobody may raise what patience has lowered, so begin anew without it
        if compiler is not None:
            compiler.close()
        os.execv(sys.executable, [each for each in sys.orig_argv if each != PATIENT])
    gc.freeze()
    gc.enable()
    line = sys.stdin.readline()
    status = serve(arguments, line) if line else 0
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)  # taking a model apart object by object takes seconds and serves nobody
