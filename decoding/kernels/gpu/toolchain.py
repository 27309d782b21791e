"""Whether Triton can launch kernels here: at run time it builds a small C module, for which it needs a compiler.

`python -m decoding.kernels.gpu.toolchain` says why not and ends with status 1, so that the build of an image finds out.
"""

from __future__ import annotations

import subprocess
import sys
from functools import lru_cache
from importlib.util import find_spec

SOURCE = """
#include <Python.h>
static struct PyModuleDef described = {PyModuleDef_HEAD_INIT, "gander_probe", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_gander_probe(void) { return PyModule_Create(&described); }
"""


# An option of kernels whose bits are promised: the compiler fuses no sum with a product, where its surroundings decide.
NO_FUSION = {"enable_fp_fusion": False}


@lru_cache
def why_no_triton() -> str | None:
    """Why Triton cannot launch kernels, to continue a sentence; None if it can, as far as a machine without a GPU can
    tell."""
    if find_spec("triton") is None:
        return "the package triton is not installed"
    from triton.runtime.build import compile_module_from_src

    try:
        compile_module_from_src(SOURCE, "gander_probe")
    except (RuntimeError, OSError, ImportError, subprocess.CalledProcessError) as error:
        return (
            f"Triton needs a C compiler (gcc and libc6-dev, or CC), Python's headers and a folder to write to: {error}"
        )
    return None


if __name__ == "__main__":
    sys.exit(why_no_triton())
