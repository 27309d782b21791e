# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""The two products of exact attention over the cache's blocks: queries with keys, weights with values.

Each kernel computes a few rows by a few vectors of sixteen numbers, all in registers; kernels differ only in how many.
A row belongs to a (token, head) pair. Addresses are integers, as in `lanes`.
Invariant: a number of the result is one sum, a fused multiply-add per step, in order of width or of keys.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.lanes import (
    FLOAT,
    INT,
    VECTOR,
    VECTOR_BYTES,
    Builder,
    Value,
    emit_address,
    emit_call,
    emit_constant,
    emit_least,
    emit_load,
    emit_offset,
    emit_prefetch,
    emit_splat,
    emit_store,
    emit_times,
)
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.processor import has_wide_registers

TILE_ROWS = 32  # the most (token, head) pairs that share a pass over keys and values
NUM_BLOCKS = 4  # blocks of keys that a kernel for one row takes at a time, and blocks staged at a time
AHEAD = 4  # blocks of values between the one that is read and the one that is prefetched
# What the kernels for several rows take at a time: rows, blocks of keys, and vectors of value columns. Their sums must
# fit the processor's registers: 32 of sixteen numbers or 16 of eight.
SOME = SOME_BLOCKS = WIDE = 4 if has_wide_registers() else 2
NARROW = 2  # vectors of value columns at a time, where fewer than `WIDE` are left


class Blocks(NamedTuple):
    """One head's keys or values. table: address of int32 block numbers, at places up to `last`. base: address of block
    0.

    then, then_step: `base` and `block_step` of the plane that is read next, for prefetching beyond the last block.
    Steps are the bytes from one block or row to the next.
    """

    table: int
    last: int
    base: int
    block_step: int
    row_step: int
    then: int
    then_step: int


class Rows(NamedTuple):
    """float32 rows: the first one's address, and the bytes from one to the next."""

    start: int
    step: int


class Sums(NamedTuple):
    """Rows of weighted sums, as in `Rows`. totals: address of the first row's sum of weights; `step` leads to the
    next."""

    start: int
    step: int
    totals: int


def _emit_step(builder: Builder, sums: list[list[Value]], factors: list[Value], vectors: list[Value]) -> None:
    """sums[r][v] += factors[r] * vectors[v]. sums: stack slots; vectors: addresses."""
    loaded = [emit_load(builder, vector, VECTOR) for vector in vectors]
    for row, factor in zip(sums, factors, strict=True):
        for slot, vector in zip(row, loaded, strict=True):
            builder.store(emit_call(builder, "fma", factor, vector, builder.load(slot)), slot)


def _emit_factor(builder: Builder, address: Value) -> Value:
    """The float32 at an address, copied to all lanes."""
    return emit_splat(builder, emit_load(builder, address, FLOAT))


def _emit_block(builder: Builder, blocks: list[Value], place: Value) -> Value:
    """The address of the block at `place` in the table; of the last block if `place` is beyond it."""
    table, last, base, block_step = blocks[:4]
    place = emit_least(builder, place, last)
    number = builder.sext(emit_load(builder, emit_address(builder, table, place, 4), INT), base.type)
    return builder.add(base, builder.mul(number, block_step))


def _emit_ahead(builder: Builder, blocks: list[Value], place: Value) -> Value:
    """The address to prefetch for `place`: beyond the last block it is in the plane that is read next."""
    table, last, base, block_step, _, then, then_step = blocks
    is_next = builder.icmp_signed(">", place, last)
    place = builder.select(is_next, emit_offset(builder, builder.sub(place, last), -1), place)
    base, block_step = builder.select(is_next, then, base), builder.select(is_next, then_step, block_step)
    return _emit_block(builder, [table, last, base, block_step], place)


def _emit_starts(builder: Builder, rows: list[Value], num_rows: int) -> list[Value]:
    return [builder.add(rows[0], emit_times(builder, rows[1], row)) for row in range(num_rows)]


def _emit_targets(builder: Builder, rows: list[Value], num_rows: int, num_vectors: int) -> list[list[Value]]:
    """The addresses of the first `num_vectors` vectors of each row."""
    starts = _emit_starts(builder, rows, num_rows)
    return [[emit_offset(builder, start, VECTOR_BYTES * place) for place in range(num_vectors)] for start in starts]


def _score_kernel(num_rows: int, num_blocks: int) -> Any:
    """scores[r, 16 b + k] = scale * <query r, key k of block first + b>. A block is float32 [width, 16]."""

    def score(_context: Any, queries: Any, blocks: Any, first: Any, width: Any, scale: Any, scores: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            queries, blocks, first, width, scale, scores = values
            blocks = cgutils.unpack_tuple(builder, blocks)
            places = [emit_offset(builder, first, number) for number in range(2 * num_blocks)]
            keys = [_emit_block(builder, blocks, place) for place in places[:num_blocks]]
            next_keys = [_emit_ahead(builder, blocks, place) for place in places[num_blocks:]]
            starts = _emit_starts(builder, cgutils.unpack_tuple(builder, queries), num_rows)
            zero = emit_constant(0.0)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in keys] for _ in range(num_rows)]
            with cgutils.for_range(builder, width, intp=width.type) as loop:
                factors = [_emit_factor(builder, emit_address(builder, query, loop.index, 4)) for query in starts]
                vectors = [emit_address(builder, key, loop.index, VECTOR_BYTES) for key in keys]
                _emit_step(builder, sums, factors, vectors)
                for key in next_keys:
                    emit_prefetch(builder, emit_address(builder, key, loop.index, VECTOR_BYTES))
            targets = _emit_targets(builder, cgutils.unpack_tuple(builder, scores), num_rows, num_blocks)
            factor = emit_splat(builder, scale)
            for slot, target in zip(chain(*sums), chain(*targets), strict=True):
                emit_store(builder, builder.fmul(builder.load(slot), factor), target)
            return context.get_dummy_value()

        return types.void(queries, blocks, types.int64, types.int64, types.float32, scores), codegen

    return intrinsic(score)


def _value_kernel(num_rows: int, num_vectors: int) -> Any:
    """sums[r, c] += weight[r, k] * value[k, c], for 16 * `num_vectors` columns and `count` keys from block `first` on;
    totals[r] += weight[r, k]."""

    def accumulate(_context: Any, weights: Any, blocks: Any, first: Any, count: Any, sums: Any) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            weights, blocks, first, count, sums = values
            weights, blocks = (cgutils.unpack_tuple(builder, each) for each in (weights, blocks))
            start, step, total = cgutils.unpack_tuple(builder, sums)
            starts = _emit_starts(builder, weights, num_rows)
            targets = _emit_targets(builder, [start, step], num_rows, num_vectors)
            totals = _emit_starts(builder, [total, step], num_rows)
            added = [cgutils.alloca_once_value(builder, emit_load(builder, total, FLOAT)) for total in totals]
            slots = [
                [cgutils.alloca_once_value(builder, emit_load(builder, target, VECTOR)) for target in row]
                for row in targets
            ]
            block_len = ir.Constant(count.type, BLOCK_LEN)
            num_blocks = builder.sdiv(emit_offset(builder, count, BLOCK_LEN - 1), block_len)
            with cgutils.for_range(builder, num_blocks, intp=count.type) as block:
                place = builder.add(first, block.index)
                value = _emit_block(builder, blocks, place)
                next_value = _emit_ahead(builder, blocks, emit_offset(builder, place, AHEAD))
                done = builder.mul(block.index, block_len)
                num_keys = emit_least(builder, builder.sub(count, done), block_len)
                with cgutils.for_range(builder, num_keys, intp=count.type) as key:
                    place = builder.add(done, key.index)
                    numbers = [emit_load(builder, emit_address(builder, weight, place, 4), FLOAT) for weight in starts]
                    for slot, number in zip(added, numbers, strict=True):
                        builder.store(builder.fadd(builder.load(slot), number), slot)
                    factors = [emit_splat(builder, number) for number in numbers]
                    row = builder.add(value, builder.mul(key.index, blocks[4]))
                    vectors = [emit_offset(builder, row, VECTOR_BYTES * place) for place in range(num_vectors)]
                    _emit_step(builder, slots, factors, vectors)
                    row = builder.add(next_value, builder.mul(key.index, blocks[4]))
                    for place in range(num_vectors):
                        emit_prefetch(builder, emit_offset(builder, row, VECTOR_BYTES * place))
            for slot, target in zip(chain(*slots), chain(*targets), strict=True):
                emit_store(builder, builder.load(slot), target)
            for slot, target in zip(added, totals, strict=True):
                emit_store(builder, builder.load(slot), target)
            return context.get_dummy_value()

        return types.void(weights, blocks, types.int64, types.int64, sums), codegen

    return intrinsic(accumulate)


score_one, score_some = _score_kernel(1, NUM_BLOCKS), _score_kernel(SOME, SOME_BLOCKS)
score_last = _score_kernel(SOME, SOME_BLOCKS // 2)
add_one_wide, add_one_narrow = _value_kernel(1, WIDE), _value_kernel(1, NARROW)
add_some_wide, add_some_narrow = _value_kernel(SOME, WIDE), _value_kernel(SOME, NARROW)
