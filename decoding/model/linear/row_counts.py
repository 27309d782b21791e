"""The row counts that packed linear layers are run with: a few, since oneDNN compiles and keeps code for each of them.

On the bundled model a new count takes 20 ms and 2 MB; all counts up to 512 took a gigabyte.
"""

from __future__ import annotations

STEPS = ((32, 1), (64, 4), (128, 8))  # up to so many rows, multiples of this
LARGE_STEP = 16


def padded_rows(num_rows: int) -> int:
    """The next count from `num_rows` on: at most an eighth more."""
    step = next((step for most, step in STEPS if num_rows <= most), LARGE_STEP)
    return -(-num_rows // step) * step
