"""Kernels that treat a row otherwise from some row count on are found out, and are then run in pieces."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from decoding.weights.numbers.onednn_floats import OneDnnFloats, onednn_packs
from decoding.weights.row_limit import MIN_EXACT_ROWS, exact_row_limit, piece_sizes, run_in_pieces

DTYPES = [torch.float32, torch.bfloat16]
WIDTH, OUT_WIDTH = 24, 1000


class ChangingKernel:
    """As processors with AMX do it: above `most` rows, and for a lone one, one number in a thousand is rounded up."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.counts: list[int] = []

    def __call__(self, rows_MI: torch.Tensor) -> torch.Tensor:
        self.counts.append(len(rows_MI))
        out_MO = rows_MI[:, torch.arange(OUT_WIDTH) % WIDTH] * 3
        if not MIN_EXACT_ROWS <= len(rows_MI) <= self.most:
            out_MO[:, 17] *= 1.01
        return out_MO


@pytest.mark.parametrize(
    ("most", "limit"), [(16, 16), (31, 16), (32, 32), (40, 33), (100, 64), (511, 256), (512, None), (9999, None)]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_probe_finds_the_most_rows_it_tried_that_changed_no_bit(
    most: int, limit: int | None, dtype: torch.dtype
) -> None:
    assert exact_row_limit(ChangingKernel(most), WIDTH, OUT_WIDTH, dtype) == limit


def test_a_kernel_that_changes_among_few_rows_has_no_limit_that_would_help() -> None:
    assert exact_row_limit(ChangingKernel(4), WIDTH, OUT_WIDTH, torch.float32) == 0


def test_the_probe_of_a_very_wide_layer_stops_before_it_costs_much() -> None:
    kernel = ChangingKernel(9999)
    assert exact_row_limit(kernel, 1 << 20, OUT_WIDTH, torch.bfloat16) is None
    assert max(kernel.counts) < 64


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_pieces_every_row_has_the_bits_it_has_among_few(dtype: torch.dtype) -> None:
    kernel = ChangingKernel(32)
    limit = exact_row_limit(kernel, WIDTH, OUT_WIDTH, dtype)
    assert limit == 32
    rows_MI = torch.randn(512, WIDTH).to(dtype)
    among_few_MO = torch.cat([kernel(few_MI) for few_MI in rows_MI.split(2)])
    assert not torch.equal(kernel(rows_MI), among_few_MO)
    for num_rows in (33, 34, 63, 64, 65, 97, 128, 511, 512):
        assert torch.equal(run_in_pieces(kernel, rows_MI[None, :num_rows], limit)[0], among_few_MO[:num_rows])


def test_pieces_are_never_lone_rows_and_seldom_smaller_than_they_may_be() -> None:
    for limit in (3, 4, 16, 32, 33):
        for num_rows in range(limit + 1, 200):
            sizes = piece_sizes(num_rows, limit)
            assert sum(sizes) == num_rows
            assert min(sizes) >= MIN_EXACT_ROWS
            assert max(sizes) <= limit
            assert sizes.count(limit) >= len(sizes) - 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_packed_linear_with_a_limit_runs_more_rows_in_pieces(dtype: torch.dtype) -> None:
    if not onednn_packs(dtype):
        pytest.skip("oneDNN packs no such layers on this processor")
    torch.manual_seed(0)
    stock = nn.Linear(64, 96).to(dtype)
    with torch.inference_mode():
        packed = OneDnnFloats(stock.weight.detach(), stock.bias.detach())
        rows = torch.randn(1, 70, 64).to(dtype)
        pieces = torch.cat([packed.multiply_at_once(piece) for piece in rows[0].split([8] * 8 + [6])])
        packed.limit_rows(8)
        assert torch.equal(packed.multiply(rows), pieces[None])
        assert torch.equal(packed.multiply(rows[:, :8]), packed.multiply_at_once(rows[0, :8])[None])
        assert packed.multiply(rows[:, :0]).shape == (1, 0, 96)
