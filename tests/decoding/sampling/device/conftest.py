"""The kernels of these tests run on the GPU if there is one, else in Triton's interpreter on tensors of the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("triton", reason="Triton is not installed, which the sampler's kernels are written in")


@pytest.fixture(autouse=True)
def _infinities_are_numbers() -> Iterator[None]:
    with np.errstate(all="ignore"), warnings.catch_warnings():  # the interpreter's arithmetic is numpy's
        warnings.simplefilter("ignore", RuntimeWarning)
        yield
