"""Triton's kernels run in its interpreter where there is no GPU; torch uses one thread where a test asks for no more;
the settings of who runs the tests are not read.

By default torch's threads spin at a barrier, and beside another busy process every tiny forward of a test waits there
for a thread that has lost its core: the same tests then take ten times as long. Threads without work sleep instead.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator

os.environ["GANDER_CONFIG"] = os.devnull
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, here and in processes of tests

import pytest
import torch

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, and when a kernel is defined


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays: nobody looks through it again and again for what could go."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()
