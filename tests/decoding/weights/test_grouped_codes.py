"""Layers of weights in groups: sums as they are written down, and the same bits for a row in any company."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from decoding.weights.groups import Groups, dequantized, quantized, rows_of, symmetric
from decoding.weights.numbers.grouped_codes import GroupedCodes

KINDS = [(bits, group) for bits in (4, 5, 6, 8) for group in (16, 32)]
KINDS_IN_SPANS = [(4, 32), (5, 32), (6, 16)]
SHAPES = [(64, 64), (101, 97), (7, 33), (130, 1030), (200, 16)]  # outputs and inputs


def random_groups(shape: tuple[int, int], bits: int, group: int, zero: int | None = None) -> Groups:
    """With scales and minima that float16 holds. zero: of all groups; None for minima."""
    num_outputs, width = shape
    torch.manual_seed(width + bits)
    num_groups = -(-width // group)
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    scales = (torch.randn(num_outputs, num_groups) * 0.01).half().float() * 2.0 ** torch.randint(
        -9, 9, (num_outputs, 1)
    )
    scales[2] = 0
    minima = (scales * torch.rand_like(scales) * 2**bits).half().float() if zero is None else scales * zero
    return Groups(codes, scales, minima, bits, group)


def random_spans(shape: tuple[int, int], bits: int, group: int, zero: int | None = None) -> Groups:
    """With scales and minima that are whole numbers of units which float16 holds."""
    num_outputs, num_spans = shape[0], shape[1] // 256
    torch.manual_seed(num_outputs + bits)
    sizes = 2.0 ** torch.randint(-9, 5, (num_outputs, 1))
    units, minimum_units = ((torch.randn(num_outputs, num_spans) * 0.01).half().float() * sizes for _ in range(2))
    units[2], units[-1, 0] = 0, 0
    minimum_units = minimum_units if zero is None else units * zero
    wholes, minimum_wholes = (torch.randint(-128, 128, (num_outputs, num_spans, 256 // group)) for _ in range(2))
    minimum_wholes = minimum_wholes if zero is None else wholes
    scales, minima = (units[..., None] * wholes).flatten(1), (minimum_units[..., None] * minimum_wholes).flatten(1)
    codes = torch.randint(0, 2**bits, shape, dtype=torch.uint8)
    return Groups(codes, scales, minima, bits, group, units, minimum_units)


def fused(one: np.ndarray, other: np.ndarray, total: np.ndarray) -> np.ndarray:
    """one * other + total, rounded once: float64 holds the product, and long doubles nearly always the sum."""
    return (one.astype(np.longdouble) * other + total).astype(np.float32)


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bytes [M, B, 32] and scales [M, B]."""
    num_rows, width = rows.shape
    blocks = np.zeros((num_rows, -(-width // 32) * 32), np.float32)
    blocks[:, :width] = rows
    blocks = blocks.reshape(num_rows, -1, 32)
    largest = np.abs(blocks).max(-1)
    factors = np.where(largest < 1e-30, 0, np.float32(127) / np.maximum(largest, np.float32(1e-30)))
    return np.rint(blocks * factors[..., None].astype(np.float32)).astype(np.int64), largest / np.float32(127)


def by_the_book(rows: torch.Tensor, groups: Groups, bias: torch.Tensor | None) -> torch.Tensor:
    numbers, factors = rounded(rows.float().numpy())
    num_blocks, group = numbers.shape[1], groups.group
    codes = np.zeros((len(groups.codes_OI), num_blocks * 32), np.int64)
    codes[:, : groups.codes_OI.shape[1]] = groups.codes_OI.numpy()
    scales, minima = groups.scales_OG.numpy(), groups.minima_OG.numpy()
    total = np.zeros((len(rows), len(codes)), np.float32)
    for place in range(scales.shape[1]):
        inputs = slice(place * group, (place + 1) * group)
        block = inputs.start // 32
        some = numbers.reshape(len(rows), -1)[:, inputs]
        factor = factors[:, block, None]
        sums = (some @ codes[:, inputs].T).astype(np.float32) * scales[None, :, place]
        total = fused(sums, factor, total)
        total = fused(-minima[None, :, place], some.sum(-1, keepdims=True).astype(np.float32) * factor, total)
    result = torch.from_numpy(total)
    return (result if bias is None else result + bias.float()).to(rows.dtype)


def check(groups: Groups, dtype: torch.dtype) -> None:
    shape = (len(groups.codes_OI), groups.codes_OI.shape[1])
    bias = torch.randn(shape[0]).to(dtype) if shape[0] != 64 else None
    rows = torch.randn(80, shape[1]).to(dtype)
    rows[3], rows[4], rows[5] = 0, rows[4] * 1e-36, rows[5] * 1e9
    layer = GroupedCodes([groups], shape, bias, dtype).multiply
    whole = layer(rows)
    assert torch.equal(whole, by_the_book(rows, groups, bias))
    for start, count in [*((0, count) for count in range(1, 41)), (79, 1), (20, 60)]:
        assert torch.equal(layer(rows[None, start : start + count])[0], whole[start : start + count])


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("zero", [None, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_outputs_are_scaled_integer_sums_in_one_order_for_any_number_of_rows(
    kind: tuple[int, int], zero: int | None
) -> None:
    for shape in SHAPES:
        check(random_groups(shape, *kind, zero), torch.float32)
    check(random_groups(SHAPES[1], *kind, zero), torch.bfloat16)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("zero", [None, 8])
@pytest.mark.parametrize("kind", KINDS_IN_SPANS)
def test_scales_in_units_of_a_span_give_such_sums_too(kind: tuple[int, int], zero: int | None) -> None:
    for shape in [(64, 256), (101, 512), (7, 1792)]:
        check(random_spans(shape, *kind, zero), torch.float32)
    check(random_spans((101, 512), *kind, zero), torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_looks_up_the_weights(kind: tuple[int, int], dtype: torch.dtype) -> None:
    for zero in (None, 7):
        made = [random_groups((101, 97), *kind, zero)]
        made += [random_spans((101, 768), *kind, zero)] if kind in KINDS_IN_SPANS else []
        for groups in made:
            shape = (101, groups.codes_OI.shape[1])
            embedding = GroupedCodes([groups], shape, None, dtype).look_up
            ids = torch.randint(0, 101, (3, 50))
            assert torch.equal(embedding(ids), dequantized(groups)[ids].to(dtype))


@pytest.mark.parametrize("width", [97, 512])
def test_slices_of_any_size_make_one_matrix(width: int) -> None:
    whole = random_groups((300, width), 5, 32) if width % 256 else random_spans((300, width), 5, 32)
    whole.minima_OG[:150] = whole.scales_OG[:150] * 16  # until here one zero point would do
    if whole.scale_units_OS is not None and whole.minimum_units_OS is not None:
        whole.minimum_units_OS[:150] = whole.scale_units_OS[:150] * 16
    parts = [rows_of(whole, rows) for rows in (slice(0, 10), slice(10, 150), slice(150, 151), slice(151, 300))]
    rows = torch.randn(5, width)
    layer = GroupedCodes(iter(parts), (300, width), None, torch.float32).multiply
    assert torch.equal(layer(rows), GroupedCodes([whole], (300, width), None, torch.float32).multiply(rows))
    assert torch.equal(layer(rows), by_the_book(rows, whole, None))


def test_bytes_are_those_of_codes_scales_and_minima_unless_one_zero_point_does() -> None:
    for (bits, group), zero in ((kind, zero) for kind in KINDS for zero in (None, 3)):
        layer = GroupedCodes([random_groups((128, 256), bits, group, zero)], (128, 256), None, torch.float32)
        scale_bytes = 128 * 256 // group * (2 if zero is not None else 4)
        assert layer.num_bytes == 128 * 256 * bits // 8 + scale_bytes + 128 * 4
    for (bits, group), zero in ((kind, zero) for kind in KINDS_IN_SPANS for zero in (None, 3)):
        layer = GroupedCodes([random_spans((128, 256), bits, group, zero)], (128, 256), None, torch.float32)
        scale_bytes = 128 * (256 // group + 2) * (1 if zero is not None else 2)
        assert layer.num_bytes == 128 * 256 * bits // 8 + scale_bytes + 128 * 4


def test_infinities_and_what_is_no_number_spoil_their_rows_alone() -> None:
    layer = GroupedCodes([random_groups((100, 96), 4, 32)], (100, 96), None, torch.float32).multiply
    rows = torch.randn(5, 96)
    clean = layer(rows)
    rows[1, 3], rows[3, 90] = math.nan, math.inf
    spoilt = layer(rows)
    assert not torch.isfinite(spoilt[[1, 3]]).any()
    assert torch.equal(spoilt[[0, 2, 4]], clean[[0, 2, 4]])


def test_rounding_finds_better_scales_than_the_range_gives_and_keeps_what_is_exact() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 100)
    for bits, share in ((4, 0.97), (6, 0.99), (8, 1.0)):
        groups = quantized(weight, bits)
        error = (dequantized(groups) - weight).square().mean().sqrt()
        padded = torch.nn.functional.pad(weight, (0, 28)).view(64, 4, 32)
        step = (padded.amax(-1) - padded.amin(-1)) / (2**bits - 1)
        assert error < share * (step.square().mean() / 12).sqrt()
    grid = (torch.randint(0, 16, (64, 64)) - 5) * 0.25
    grid[:, ::32], grid[:, 1::32] = -5 * 0.25, 10 * 0.25
    grid[3], grid[4] = 0, 0.5
    assert torch.allclose(dequantized(quantized(grid, 4)), grid, atol=1e-6)


def test_symmetric_codes_have_a_zero_and_half_a_scale_of_error() -> None:
    torch.manual_seed(0)
    weight = torch.randn(5, 70)
    weight[2] = 0
    groups = symmetric(weight)
    scales = groups.scales_OG.repeat_interleave(32, 1)[:, :70]
    assert int((groups.codes_OI.int() - 128).abs().max()) == 127
    assert not dequantized(groups)[2].any()
    assert bool(((dequantized(groups) - weight).abs() <= 0.501 * scales).all())
    assert GroupedCodes([groups], (5, 70), None, torch.float32).packed.zero == 128
