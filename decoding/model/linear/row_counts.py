"""The row counts that oneDNN's linear layers are run with: a few, since it compiles and keeps code for each of them.

On the bundled model a new count takes 20 ms and 2 MB; all counts up to 512 took a gigabyte.
Invariant: code is made for each count and each shape of layer, however many layers have it.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from decoding.model.linear.row_limit import MIN_EXACT_ROWS

STEPS = ((32, 1), (64, 4), (128, 8))  # up to so many rows, multiples of this
LARGE_STEP = 16
CODE_BYTES = 350_000  # for one shape and row count, measured on the bundled model and its draft


def padded_rows(num_rows: int) -> int:
    """The next count from `num_rows` on: at most an eighth more."""
    step = next((step for most, step in STEPS if num_rows <= most), LARGE_STEP)
    return -(-num_rows // step) * step


def padded(rows_M: torch.Tensor, few_rows: int) -> torch.Tensor:
    """Rows with zeros behind, up to a count that oneDNN is run with; `few_rows` or fewer, which it never sees, stay."""
    if len(rows_M) <= few_rows or len(rows_M) == 0:
        return rows_M
    num_missing = max(padded_rows(len(rows_M)), MIN_EXACT_ROWS) - len(rows_M)
    return functional.pad(rows_M, (0, 0) * (rows_M.dim() - 1) + (0, num_missing)) if num_missing else rows_M


def code_bytes(num_shapes: int, few_rows: int, most_rows: int) -> int:
    """What oneDNN will have kept once forwards of all counts from `few_rows` on, up to `most_rows`, were run."""
    counts = {padded_rows(num_rows) for num_rows in range(few_rows + 1, most_rows + 1)}
    return num_shapes * len(counts) * CODE_BYTES
