"""Pads rows to a few numbers of rows, since oneDNN compiles and keeps code for each number of rows.

On the bundled model a new number takes 20 ms and 2 MB; all numbers up to 512 took a gigabyte.
Invariant: oneDNN keeps one piece of code for each number of rows and shape of layer, however many layers have it.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from decoding.weights.row_limit import MIN_EXACT_ROWS

STEPS = ((32, 1), (64, 4), (128, 8))  # up to the first number of rows, pad to multiples of the second
LARGE_STEP = 16
CODE_BYTES = 350_000  # of one shape and number of rows, measured on the bundled model and its draft


def padded_rows(num_rows: int) -> int:
    """The number of rows to pad to: at most an eighth more than `num_rows`."""
    step = next((step for most, step in STEPS if num_rows <= most), LARGE_STEP)
    return -(-num_rows // step) * step


def padded(rows_M: torch.Tensor, few_rows: int) -> torch.Tensor:
    """Pad rows with zeros to a number for oneDNN. Up to `few_rows` rows stay as they are: oneDNN never sees them."""
    if len(rows_M) <= few_rows or len(rows_M) == 0:
        return rows_M
    num_missing = max(padded_rows(len(rows_M)), MIN_EXACT_ROWS) - len(rows_M)
    return functional.pad(rows_M, (0, 0) * (rows_M.dim() - 1) + (0, num_missing)) if num_missing else rows_M


def code_bytes(num_shapes: int, few_rows: int, most_rows: int) -> int:
    """The bytes of code that oneDNN keeps after forwards of every number of rows above `few_rows` up to `most_rows`."""
    counts = {padded_rows(num_rows) for num_rows in range(few_rows + 1, most_rows + 1)}
    return num_shapes * len(counts) * CODE_BYTES
