"""Packs the codes of whole panels, four inputs at a time, as `Layout` says.

Without Python's GIL, so that threads may pack several matrices at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from decoding.kernels.cpu.products.grouped.layout import STEPS
from decoding.kernels.cpu.products.panels import PANEL
from decoding.kernels.numba_kernel import kernel


@kernel(nogil=True, borrows=True)
def pack_codes(words_OBS: Any, bits: int, packed_PSBW: Any) -> None:
    """words_OBS: uint32, a step's codes for each output, block and step. packed_PSBW: uint32, the records of each
    span's blocks."""
    half, extra = STEPS // 2, bits - 4
    nibbles, highs = np.uint32(0x0F0F0F0F), np.uint32(0x01010101 * (2**extra - 1) & 0xFFFFFFFF)
    num_panels, num_spans, span_blocks, _ = packed_PSBW.shape
    for panel in range(num_panels):
        for block in range(num_spans * span_blocks):
            record = packed_PSBW[panel, block // span_blocks, block % span_blocks]
            for output in range(PANEL):
                words = words_OBS[panel * PANEL + output, block]
                if bits == 8:
                    for step in range(STEPS):
                        record[step * PANEL + output] = words[step]
                    continue
                for step in range(half):
                    record[step * PANEL + output] = (words[step] & nibbles) | (words[step + half] & nibbles) << 4
                for plane in range(extra):  # of higher bits, which serves 8 // extra steps
                    high = np.int64(0)
                    for step in range(8 // extra):
                        high |= np.int64(words[plane * (8 // extra) + step] >> 4 & highs) << (step * extra)
                    record[(half + plane) * PANEL + output] = high
