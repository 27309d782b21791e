# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""Unpacks single rows of a packed matrix, as an embedding looks them up.

Addresses are integers, in bytes, which nothing checks.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    HALF_VECTOR,
    INT,
    LANES,
    Builder,
    Value,
    copy_bytes,
    emit_load,
    narrow,
    pointer,
    raise_counter,
)
from decoding.kernels.cpu.products.grouped.layout import BLOCK, HALF_BYTES, PLANE_BYTES, SPAN, STEP, STEPS
from decoding.kernels.cpu.products.grouped.unpacking import emit_widened
from decoding.kernels.cpu.products.panels import PANEL, PANEL_BYTES
from decoding.kernels.numba_kernel import kernel

# The fields of a call, each an int64. RECORD: bytes of a panel's block; FACTORS: float32 for each output; ZERO: the
# zero point of all groups, or -1 if they have minima; UNITS: bytes before each span, of its units, see `Layout`.
SOURCE, TARGET, NUM_ROWS, COUNTER, WIDTH, IDS, RECORD, NUM_BLOCKS, FACTORS, ITEM, ZERO, BITS, GROUP, UNITS = range(14)
NUM_FIELDS = 14


@intrinsic
def _widened(_context: Any, address: Any) -> Any:
    """The float16 number at an address, as float32."""

    def codegen(_context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
        half = emit_load(builder, values[0], ir.IntType(16))
        empty = ir.Constant(HALF_VECTOR, [0] * LANES)
        numbers = emit_widened(builder, builder.insert_element(empty, half, ir.Constant(INT, 0)))
        return builder.extract_element(numbers, ir.Constant(INT, 0))

    return types.float32(types.int64), codegen


@kernel
def _code(block: int, bits: int, step: int, place: int) -> Any:
    """A code of a packed block. block: its address; place: of the byte among a step's."""
    codes = nb.carray(pointer(block, np.uint8(0)), PLANE_BYTES)
    if bits == 8:
        return np.int64(codes[step * PANEL_BYTES + place])
    half = STEPS // 2
    code = np.int64(codes[step % half * PANEL_BYTES + place]) >> (step // half * 4) & 15
    extra = bits - 4
    if extra:
        steps_a_plane = 8 // extra
        plane = np.int64(codes[(half + step // steps_a_plane) * PANEL_BYTES + place])
        code |= (plane >> (step % steps_a_plane * extra) & (2**extra - 1)) << 4
    return code


@kernel
def _scale(start: int, place: int, units: int, output: int) -> Any:
    """The scale or minimum of a group, whose place among those from `start` on is given. units: the address of its
    span's, or 0 if it is float16."""
    if units == 0:
        return _widened(start + HALF_BYTES * place)
    whole = nb.carray(pointer(start + place, np.int8(0)), 1)[0]
    return np.float32(whole) * _widened(units + HALF_BYTES * output)


@kernel
def _unpack_row(block: int, units: int, bits: int, group: int, output: int, zero: int, numbers: Any) -> None:
    """Write a block's weights of one output of its panel, but for the output's factor. units: see `_scale`."""
    num_groups = BLOCK // group
    scales = block + PLANE_BYTES * bits // 8
    minima = scales + (HALF_BYTES if units == 0 else 1) * PANEL * num_groups
    minimum_units = units + (0 if units == 0 else HALF_BYTES * PANEL)
    for place in range(BLOCK):
        pair = place // group * PANEL + output
        scale = _scale(scales, pair, units, output)
        minimum = _scale(minima, pair, minimum_units, output) if zero < 0 else scale * np.float32(zero)
        code = _code(block, bits, place // STEP, output * STEP + place % STEP)
        numbers[place] = scale * np.float32(code) - minimum


@nb.njit(inline="always")
def _look_up(call: Any) -> None:
    counter = np.int64(call.ctypes.data) + 8 * COUNTER
    ids = nb.carray(pointer(call[IDS], np.int64(0)), call[NUM_ROWS])
    width, item, record, units = call[WIDTH], call[ITEM], call[RECORD], call[UNITS]
    panel_bytes = call[NUM_BLOCKS] * record + (call[NUM_BLOCKS] + SPAN - 1) // SPAN * units
    numbers = np.empty(BLOCK, np.float32)
    address = np.int64(numbers.ctypes.data)
    while True:
        row = raise_counter(counter, 1)
        if row >= call[NUM_ROWS]:
            return
        panel, output = ids[row] // PANEL, ids[row] % PANEL
        factor = nb.carray(pointer(call[FACTORS] + 4 * ids[row], np.float32(0)), 1)[0]
        block = span = call[SOURCE] + panel * panel_bytes
        for start in range(0, width, BLOCK):
            if start % (SPAN * BLOCK) == 0:
                span = block
                block += units
            _unpack_row(block, span if units > 0 else 0, call[BITS], call[GROUP], output, call[ZERO], numbers)
            numbers *= factor
            if item == HALF_BYTES:
                narrow(address, BLOCK // LANES, address)
            copy_bytes(call[TARGET] + (row * width + start) * item, address, min(BLOCK, width - start) * item)
            block += record


def look_up_groups(fields: Any) -> None:
    """One thread's share of a call that unpacks the rows `IDS` of a matrix."""
    _look_up(nb.carray(fields, NUM_FIELDS))
