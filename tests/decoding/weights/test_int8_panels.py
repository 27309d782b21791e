"""Linear layers of int8 weights: the sums that are written down, and the same bits for a row in any company."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from decoding.config import EngineConfig
from decoding.model.linear.packed import round_linears
from decoding.model.target_model import TargetModel
from decoding.weights.kinds import INT8, KINDS
from decoding.weights.linear import Linear, num_bytes_in, num_weights_in
from decoding.weights.numbers.int8_panels import Int8Panels
from decoding.weights.rounding import can_round_to_int8
from tests.models import tiny

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(not can_round_to_int8(CPU, torch.float32), reason="this processor has no VNNI")
DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16) if can_round_to_int8(CPU, dtype)]
SHAPES = [(64, 96), (101, 97), (130, 2050), (768, 64), (7, 128)]  # input and output widths


def by_the_book(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The same integers, summed in float64, which holds them all."""
    scales = weight.float().abs().amax(1) / 127
    integers = torch.where(scales[:, None] > 0, weight.float() / scales[:, None], 0).round()
    sizes = rows.float().abs().amax(1)
    factors = torch.where(sizes > 0, torch.full_like(sizes, 127) / sizes, 0)
    sums = (rows.float() * factors[:, None]).round().double() @ integers.double().t()
    result = sums.float() * scales * (sizes / 127)[:, None]
    return (result if bias is None else result + bias.float()).to(rows.dtype)


def check(shape: tuple[int, int], dtype: torch.dtype) -> None:
    width, out_width = shape
    torch.manual_seed(width)
    weight, rows = torch.randn(out_width, width).to(dtype), torch.randn(300, width).to(dtype)
    weight[2], rows[3] = 0, 0
    bias = torch.randn(out_width).to(dtype) if width != 64 else None
    layer = Int8Panels(weight, bias).multiply
    whole = layer(rows)
    assert torch.equal(whole, by_the_book(rows, weight, bias))
    for start, count in [*((0, count) for count in range(1, 71)), (299, 1), (20, 280)]:
        assert torch.equal(layer(rows[None, start : start + count])[0], whole[start : start + count])


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_are_scaled_integer_sums_for_any_number_of_rows(shape: tuple[int, int], dtype: torch.dtype) -> None:
    check(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinities_and_what_is_no_number_spoil_their_rows_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = Int8Panels(torch.randn(100, 96).to(dtype), None).multiply
    rows = torch.randn(5, 96).to(dtype)
    clean = layer(rows)
    rows[1, 3], rows[3, 90] = math.nan, math.inf
    spoilt = layer(rows)
    assert not torch.isfinite(spoilt[[1, 3]]).any()
    assert torch.equal(spoilt[[0, 2, 4]], clean[[0, 2, 4]])


def test_rounding_replaces_all_but_the_narrowest_and_keeps_no_second_copy() -> None:
    torch.manual_seed(0)
    transposed = Conv1D(128, 64)
    model = nn.Sequential(nn.Linear(64, 64), transposed, nn.Linear(128, 8))
    rows = torch.randn(9, 64)
    expected = model(rows)
    round_linears(model, KINDS[INT8])
    assert [type(each) for each in model] == [Linear, Linear, nn.Linear]
    assert num_bytes_in(model) == 64 * 64 + 64 * 128 + 8 * (64 + 128) + 4 * (128 * 8 + 8)
    assert num_weights_in(model) == 64 * 64 + 64 * 128 + 128 * 8 + 8
    assert sum(each.numel() for each in model.parameters()) == 128 * 8 + 8
    assert (model(rows) - expected).norm() < 0.02 * expected.norm()


def test_a_model_of_int8_weights_is_exact_and_another_model() -> None:
    config = EngineConfig(max_model_len=64, threads=1)
    model = TargetModel.from_model(tiny("llama"), config)
    rounded = TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=64, threads=1, weights="int8"))
    assert rounded.is_exact == model.is_exact
    assert (model.weights, rounded.weights) == ("float32", "int8")
    assert rounded.fingerprint != model.fingerprint
    assert rounded.num_bytes < model.num_bytes
