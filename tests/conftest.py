"""Triton's kernels run in its interpreter, on the CPU, where there is no GPU."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, and when a kernel is defined
