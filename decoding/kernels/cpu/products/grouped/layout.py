"""How weights of 4 to 8 bits in groups lie in memory, and the records that rows are rounded to.

A panel holds 64 outputs, in blocks of 32 inputs (see `Layout`): codes, then scales and perhaps minima, as float16 or as
whole bytes, which count in units that stand as float16 before each span of eight blocks. A row is made of records of 64
bytes, one a block: signed bytes, their scale and their sums (see `round_blocks`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from decoding.kernels.cpu.products.panels import PANEL, PANEL_BYTES
from decoding.kernels.processor import multiplies_bytes, multiplies_wide_bytes

BLOCK = 32  # inputs of a block
STEP = 4  # inputs of a step: a vector holds so many bytes of each of its outputs
STEPS = BLOCK // STEP
HALF_BYTES = 2
SPAN = 8  # blocks whose scales may be whole numbers times a common one: GGUF's super-block
PLANE_BYTES = BLOCK * PANEL  # a block's codes, a byte each
# A row's record: bytes, scale, then the sums of all, of the first and of the second sixteen, times the scale; then the
# same three as int32, times `MIDDLE`.
ROW_RECORD, SCALE_PLACE, SUM_PLACES, MIDDLE_PLACES = 64, 32, (36, 40, 44), (48, 52, 56)
MIDDLE = 128  # codes of eight bits, less this, are signed
HAS_WIDE_VNNI, HAS_VNNI = multiplies_wide_bytes(), multiplies_bytes()


class Layout(NamedTuple):
    """How the blocks of a type lie in memory, packed and unpacked.

    Packed, in bytes: a nibble of each code, low nibbles for the first half of the steps; then a plane of the fifth bit
    or of the fifth and sixth. Unpacked: a byte a code, float32 scales, float32 minima. Codes of eight bits lie as they
    are, and stay there: of their blocks only scales and minima are unpacked. scale_bytes: of a packed scale, 2 or 1.
    """

    bits: int
    group: int
    scale_bytes: int = HALF_BYTES

    @property
    def num_groups(self) -> int:
        return BLOCK // self.group

    @property
    def code_bytes(self) -> int:
        return PLANE_BYTES * self.bits // 8

    @property
    def pair_bytes(self) -> int:
        """Of a block's scales, or of its minima."""
        return self.scale_bytes * PANEL * self.num_groups

    @property
    def unit_bytes(self) -> int:
        """Of the units of a span's scales, or of its minima; 0 where scales are float16."""
        return HALF_BYTES * PANEL if self.scale_bytes == 1 else 0

    @property
    def flush(self) -> int:
        """Without VNNI, the steps whose products are summed in 16 bits, of nibbles for 8; more might not fit."""
        return min(self.group // STEP, {4: 8, 5: 4, 6: 2, 8: 8}[self.bits])

    @property
    def scales_place(self) -> int:
        return 0 if self.bits == 8 else PLANE_BYTES

    @property
    def minima_place(self) -> int:
        return self.scales_place + self.num_groups * PANEL_BYTES

    @property
    def unpacked_bytes(self) -> int:
        return self.minima_place + self.num_groups * PANEL_BYTES


MOST_UNPACKED = Layout(4, 16).unpacked_bytes


def layout_of(bits: Any, group: Any, scale_bytes: Any) -> Layout:
    return Layout(bits.literal_value, group.literal_value, scale_bytes.literal_value)
