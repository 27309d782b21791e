# ruff: noqa: ARG001 - an intrinsic receives the types of its arguments, which the signature fixes anyway
"""The two products of exact attention over the cache's blocks: queries with keys, weights with values.

Each kernel computes a few rows by a few vectors of sixteen numbers, all in registers; kernels differ only in how many.
A row belongs to a (token, head) pair. Addresses are integers, as in `lanes`.
A step of a sum is a fused multiply-add of float32, or two products of bfloat16 pairs: of two neighbours of a key's
width, or of two keys. Invariant: a number of the result is one sum, in order of width or of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from decoding.kernels.cpu.halves import emit_pair_product
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
from decoding.kernels.cpu.products.tiles import HAS_TILES
from decoding.kernels.layout import BLOCK_LEN
from decoding.kernels.processor import has_wide_registers, multiplies_halves

HAS_PAIRS = multiplies_halves()  # else bfloat16 numbers are widened first
NUM_BLOCKS = 4  # blocks of keys that a kernel for one row takes at a time, and blocks staged at a time
AHEAD = 4  # blocks of values between the one that is read and the one that is prefetched
# What the kernels for several rows take at a time: rows, blocks of keys, and vectors of value columns. Their sums must
# fit the processor's registers: 32 of sixteen numbers or 16 of eight.
SOME = SOME_BLOCKS = WIDE = 4 if has_wide_registers() else 2
NARROW = 2  # vectors of value columns at a time, where fewer than `WIDE` are left


Product = Callable[[Builder, Value, Value, Value], Value]


class Plane(NamedTuple):
    """One head's keys or values. table: address of int32 block numbers. base: address of block 0. block_step: the bytes
    from one block to the next."""

    table: int
    base: int
    block_step: int


class Blocks(NamedTuple):
    """Keys or values at places of a plane's table up to `last`. row_step: the bytes from one row to the next.

    next_table, next_base, next_block_step: the plane that is read next, for prefetching beyond the last block.
    """

    table: int
    base: int
    block_step: int
    last: int
    row_step: int
    next_table: int
    next_base: int
    next_block_step: int


class Rows(NamedTuple):
    """float32 rows: the first one's address, and the bytes from one to the next."""

    start: int
    step: int


def _emit_fma(builder: Builder, total: Value, factor: Value, vector: Value) -> Value:
    return emit_call(builder, "fma", factor, vector, total)


def _emit_either(builder: Builder, is_in_pairs: Value, emit_sums: Callable[[Product], None]) -> None:
    """Sums by the one product or the other; where there are no pairs, or tiles for them, no code for them."""
    if not HAS_PAIRS or HAS_TILES:
        emit_sums(_emit_fma)
        return
    with builder.if_else(is_in_pairs) as (with_pairs, otherwise):
        with with_pairs:
            emit_sums(emit_pair_product)
        with otherwise:
            emit_sums(_emit_fma)


def _emit_step(
    builder: Builder, product: Product, sums: list[list[Value]], factors: list[Value], vectors: list[Value]
) -> None:
    """sums[r][v] += factors[r] * vectors[v]. sums: stack slots; vectors: addresses."""
    loaded = [emit_load(builder, vector, VECTOR) for vector in vectors]
    for row, factor in zip(sums, factors, strict=True):
        for slot, vector in zip(row, loaded, strict=True):
            builder.store(product(builder, builder.load(slot), factor, vector), slot)


def _emit_factor(builder: Builder, address: Value) -> Value:
    """The float32 at an address, copied to all lanes."""
    return emit_splat(builder, emit_load(builder, address, FLOAT))


def _emit_block(builder: Builder, blocks: list[Value], place: Value) -> Value:
    """The address of the block at `place` in the table; of the last block if `place` is beyond it."""
    table, base, block_step, last = blocks[:4]
    place = emit_least(builder, place, last)
    number = builder.sext(emit_load(builder, emit_address(builder, table, place, 4), INT), base.type)
    return builder.add(base, builder.mul(number, block_step))


def _emit_ahead(builder: Builder, blocks: list[Value], place: Value) -> Value:
    """The address to prefetch for `place`: beyond the last block it is in the plane that is read next."""
    last, next_plane = blocks[3], blocks[5:]
    is_next = builder.icmp_signed(">", place, last)
    place = builder.select(is_next, emit_offset(builder, builder.sub(place, last), -1), place)
    plane = [builder.select(is_next, other, own) for other, own in zip(next_plane, blocks[:3], strict=True)]
    return _emit_block(builder, [*plane, last], place)


def _emit_starts(builder: Builder, rows: list[Value], num_rows: int) -> list[Value]:
    return [builder.add(rows[0], emit_times(builder, rows[1], row)) for row in range(num_rows)]


def _emit_targets(builder: Builder, rows: list[Value], num_rows: int, num_vectors: int) -> list[list[Value]]:
    """The addresses of the first `num_vectors` vectors of each row."""
    starts = _emit_starts(builder, rows, num_rows)
    return [[emit_offset(builder, start, VECTOR_BYTES * place) for place in range(num_vectors)] for start in starts]


def _score_kernel(num_rows: int, num_blocks: int) -> Any:
    """scores[r, 16 b + k] = scale * <query r, key k of block first + b>. A block has `num_steps` vectors.

    is_in_pairs: of numbers or of keys, in queries, weights and blocks.
    """

    def score(
        _context: Any, queries: Any, blocks: Any, first: Any, num_steps: Any, is_in_pairs: Any, scale: Any, scores: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            queries, blocks, first, num_steps, is_in_pairs, scale, scores = values
            blocks = cgutils.unpack_tuple(builder, blocks)
            places = [emit_offset(builder, first, number) for number in range(2 * num_blocks)]
            keys = [_emit_block(builder, blocks, place) for place in places[:num_blocks]]
            next_keys = [_emit_ahead(builder, blocks, place) for place in places[num_blocks:]]
            starts = _emit_starts(builder, cgutils.unpack_tuple(builder, queries), num_rows)
            zero = emit_constant(0.0)
            sums = [[cgutils.alloca_once_value(builder, zero) for _ in keys] for _ in range(num_rows)]

            def emit_sums(product: Product) -> None:
                with cgutils.for_range(builder, num_steps, intp=num_steps.type) as loop:
                    factors = [_emit_factor(builder, emit_address(builder, query, loop.index, 4)) for query in starts]
                    vectors = [emit_address(builder, key, loop.index, VECTOR_BYTES) for key in keys]
                    _emit_step(builder, product, sums, factors, vectors)
                    if product is _emit_fma:  # pairs are staged, and prefetched then
                        for key in next_keys:
                            emit_prefetch(builder, emit_address(builder, key, loop.index, VECTOR_BYTES))

            _emit_either(builder, is_in_pairs, emit_sums)
            targets = _emit_targets(builder, cgutils.unpack_tuple(builder, scores), num_rows, num_blocks)
            factor = emit_splat(builder, scale)
            for slot, target in zip(chain(*sums), chain(*targets), strict=True):
                emit_store(builder, builder.fmul(builder.load(slot), factor), target)
            return context.get_dummy_value()

        return types.void(queries, blocks, types.int64, types.int64, types.boolean, types.float32, scores), codegen

    return intrinsic(score)


def _value_kernel(num_rows: int, num_vectors: int) -> Any:
    """sums[r, c] += weight[r, k] * value[k, c], for 16 * `num_vectors` columns and `num_steps` keys or pairs of keys
    from block `first` on."""

    def accumulate(
        _context: Any, weights: Any, blocks: Any, first: Any, num_steps: Any, is_in_pairs: Any, sums: Any
    ) -> Any:
        def codegen(context: Any, builder: Builder, _signature: Any, values: Any) -> Value:
            weights, blocks, first, num_steps, is_in_pairs, sums = values
            weights, blocks, sums = (cgutils.unpack_tuple(builder, each) for each in (weights, blocks, sums))
            starts = _emit_starts(builder, weights, num_rows)
            targets = _emit_targets(builder, sums, num_rows, num_vectors)
            slots = [
                [cgutils.alloca_once_value(builder, emit_load(builder, target, VECTOR)) for target in row]
                for row in targets
            ]

            def emit_sums(product: Product) -> None:
                _emit_weighted(builder, product, slots, starts, (blocks, first, num_steps))

            _emit_either(builder, is_in_pairs, emit_sums)
            for slot, target in zip(chain(*slots), chain(*targets), strict=True):
                emit_store(builder, builder.load(slot), target)
            return context.get_dummy_value()

        return types.void(weights, blocks, types.int64, types.int64, types.boolean, sums), codegen

    return intrinsic(accumulate)


def _emit_weighted(
    builder: Builder,
    product: Product,
    slots: list[list[Value]],
    starts: list[Value],
    steps: tuple[list[Value], Value, Value],
) -> None:
    """slots[r][v] += the weighted values of `steps`: the blocks, the first one's place, and how many keys or pairs.
    starts: the addresses of the rows' weights."""
    blocks, first, num_steps = steps
    row_step, per_block = blocks[4], BLOCK_LEN if product is _emit_fma else BLOCK_LEN // 2
    block_len = ir.Constant(num_steps.type, per_block)
    num_blocks = builder.sdiv(emit_offset(builder, num_steps, per_block - 1), block_len)
    with cgutils.for_range(builder, num_blocks, intp=num_steps.type) as block:
        place = builder.add(first, block.index)
        value = _emit_block(builder, blocks, place)
        next_value = _emit_ahead(builder, blocks, emit_offset(builder, place, AHEAD))
        done = builder.mul(block.index, block_len)
        num_keys = emit_least(builder, builder.sub(num_steps, done), block_len)
        with cgutils.for_range(builder, num_keys, intp=num_steps.type) as key:
            place = builder.add(done, key.index)
            factors = [_emit_factor(builder, emit_address(builder, weight, place, 4)) for weight in starts]
            row = builder.add(value, builder.mul(key.index, row_step))
            vectors = [emit_offset(builder, row, VECTOR_BYTES * place) for place in range(len(slots[0]))]
            _emit_step(builder, product, slots, factors, vectors)
            if product is _emit_fma:
                row = builder.add(next_value, builder.mul(key.index, row_step))
                for place in range(len(slots[0])):
                    emit_prefetch(builder, emit_offset(builder, row, VECTOR_BYTES * place))


score_one, score_some, score_last = (
    _score_kernel(1, NUM_BLOCKS),
    _score_kernel(SOME, SOME_BLOCKS),
    _score_kernel(SOME, SOME_BLOCKS // 2),
)
add_one_wide, add_one_narrow = _value_kernel(1, WIDE), _value_kernel(1, NARROW)
add_some_wide, add_some_narrow = _value_kernel(SOME, WIDE), _value_kernel(SOME, NARROW)
