"""The second reader of packed weights: oneDNN's bits for any rows and threads, and used only where it is quicker."""

from __future__ import annotations

import math
import sys
from itertools import cycle

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import nn

from decoding.kernels.processor import multiplies_halves, multiplies_in_tiles, widens_halves
from decoding.model.linear.packed import packing_rule
from decoding.model.replacing.replacer import replace
from decoding.weights.linear import num_few_rows
from decoding.weights.numbers import onednn_floats
from decoding.weights.numbers.float_panels import FloatPanels, fitting_panels, in_panels
from decoding.weights.numbers.floats import Floats
from decoding.weights.numbers.onednn_floats import OneDnnFloats
from decoding.weights.readers import COUNTS, ROUNDS, most_rows_worth
from decoding.weights.row_counts import code_bytes, padded
from tests.levels import PAIRS_NEED

DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=PAIRS_NEED)]
WITHOUT_TILES = pytest.mark.skipif(multiplies_in_tiles(), reason="where there is AMX, panels are not oneDNN's")
READ_DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=(PAIRS_NEED, WITHOUT_TILES))]  # as oneDNN packs them
SHAPES = [(64, 96), (256, 64), (688, 257), (100, 97), (2050, 130), (768, 640), (36, 1)]  # input and output widths


def packed_layer(width: int, out_width: int, dtype: torch.dtype, has_bias: bool = True) -> OneDnnFloats:
    torch.manual_seed(width + out_width)
    stock = nn.Linear(width, out_width, bias=has_bias).to(dtype)
    with torch.inference_mode():
        return OneDnnFloats(stock.weight.detach(), stock.bias.detach() if has_bias else None)


def panels_of(layer: OneDnnFloats) -> FloatPanels | None:
    if Version(torch.__version__) < Version("2.12") and layer.dtype == torch.float32:
        pytest.skip("oneDNN of torch 2.11 packs float32 in another way")
    return fitting_panels(layer.packed_weight, layer.bias_O, layer.shape, layer.dtype, layer.multiply_at_once)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("dtype", READ_DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_row_count_gives_the_bits_of_a_lone_row_and_of_the_packed_layer(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    layer = packed_layer(*shape, dtype, has_bias=shape[0] != 256)
    panels = panels_of(layer)
    if shape[1] == 1 and panels is None:  # which oneDNN leaves as it is in float32
        return
    assert panels is not None
    rows = torch.randn(300, shape[0]).to(dtype)
    expected = layer.multiply_at_once(rows)
    alone = torch.cat([panels.multiply(row[None]) for row in torch.split(rows, 1) for row in row])
    assert torch.equal(alone, expected)
    for count in (*range(1, 71), 255, 256, 257, 300):
        assert torch.equal(panels.multiply(rows[None, :count])[0], expected[:count])


@pytest.mark.parametrize("block", [16, 40, 100])
def test_float32_outputs_are_sums_of_blocks_in_order_of_the_input(block: int) -> None:
    weight, rows = torch.randn(70, 100), torch.randn(9, 100)
    total = np.full((9, 70), -0.0, np.float32)
    for start in range(0, 100, block):
        part = np.zeros((9, 70), np.float32)
        for place in range(start, min(start + block, 100)):  # float64 rounds once, as a fused multiply-add does
            product = rows.numpy()[:, place, None].astype(np.float64) * weight.numpy()[None, :, place]
            part = (part + product).astype(np.float32)
        total += part
    panels = FloatPanels(in_panels(weight), None, (70, 100), torch.float32, block)
    np.testing.assert_array_equal(panels.multiply(rows).numpy(), total)


@pytest.mark.skipif(not widens_halves() or multiplies_halves(), reason="for processors that widen bfloat16")
@pytest.mark.parametrize("shape", [(96, 64), (100, 97), (2050, 130), (36, 1)])
def test_bfloat16_outputs_are_float32_sums_in_order_of_the_input(shape: tuple[int, int]) -> None:
    torch.manual_seed(sum(shape))
    weight, rows = torch.randn(shape[1], shape[0]).bfloat16(), torch.randn(300, shape[0]).bfloat16()
    bias = torch.randn(shape[1]).bfloat16()
    total = np.zeros((300, shape[1]), np.float32)
    for place in range(shape[0]):  # products of two bfloat16 numbers have no error
        total += rows.float().numpy()[:, place, None] * weight.float().numpy()[None, :, place]
    panels = FloatPanels(in_panels(weight), bias, (shape[1], shape[0]), torch.bfloat16, shape[0] // 2)
    expected = (torch.from_numpy(total) + bias.float()).bfloat16()
    for count in (*range(1, 30), 255, 256, 257, 300):
        assert torch.equal(panels.multiply(rows[:count]), expected[:count])


@pytest.mark.parametrize("dtype", READ_DTYPES)
def test_infinities_and_what_is_no_number_stay_in_their_rows(dtype: torch.dtype) -> None:
    layer = packed_layer(96, 100, dtype)
    panels = panels_of(layer)
    assert panels is not None
    rows = torch.randn(9, 96).to(dtype)
    clean = panels.multiply(rows)
    rows[1, 3], rows[5, 90] = math.nan, math.inf
    spoilt = panels.multiply(rows)
    assert torch.isnan(spoilt[1]).all()
    assert torch.isinf(spoilt[5]).all()
    others = [0, 2, 3, 4, 6, 7, 8]
    assert torch.equal(spoilt[others], clean[others])


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_in_panels_of_our_own_a_row_has_the_same_bits_among_any_others(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(sum(shape))
    weight_OI, rows = torch.randn(shape[1], shape[0]).to(dtype), torch.randn(90, shape[0]).to(dtype)
    panels = FloatPanels.of(Floats.of_tensor(weight_OI), None, dtype, torch.device("cpu"))
    alone = torch.cat([panels.multiply(row) for row in torch.split(rows, 1)])
    for count in (2, 7, 8, 15, 16, 17, 32, 33, 90):
        assert torch.equal(panels.multiply(rows[:count]), alone[:count])
    expected = rows.double() @ weight_OI.double().T
    assert float((alone - expected).abs().max() / expected.abs().max()) < (1e-5 if dtype == torch.float32 else 8e-3)


def test_in_tiles_bfloat16_is_multiplied_from_panels_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_floats, "multiplies_in_tiles", lambda: True)
    kinds = {}
    for dtype in (torch.float32, torch.bfloat16):
        floats = Floats.of_tensor(torch.randn(64, 32).to(dtype))
        kinds[dtype] = type(OneDnnFloats.of(floats, None, dtype, torch.device("cpu")))
    assert kinds == {torch.float32: OneDnnFloats, torch.bfloat16: FloatPanels}


def test_a_layer_that_gives_other_bits_is_left_to_onednn() -> None:
    layer = packed_layer(96, 100, torch.float32)
    backwards = 95 - torch.arange(96)
    mirrored = OneDnnFloats(torch.randn(100, 96)[:, backwards], None)
    shape, dtype = layer.shape, layer.dtype
    assert fitting_panels(layer.packed_weight, layer.bias_O, shape, dtype, mirrored.multiply_at_once) is None
    assert (
        fitting_panels(layer.packed_weight, layer.bias_O, (101, 97), dtype, layer.multiply_at_once) is None
    )  # beyond its end
    odd = packed_layer(97, 64, torch.float32)
    assert fitting_panels(odd.packed_weight, odd.bias_O, odd.shape, torch.bfloat16, odd.multiply_at_once) is None


class ScriptedClock:
    """Says that the two readers' calls of each row count take so long, in turns, as `most_rows_worth` times them."""

    def __init__(self, pairs: list[tuple[float, float]]) -> None:
        self._now = 0.0
        self._durations = (seconds for pair in pairs for _ in range(ROUNDS) for seconds in pair)
        self._is_start = cycle((True, False))

    def __call__(self) -> float:
        if not next(self._is_start):
            self._now += next(self._durations)
        return self._now


@pytest.mark.parametrize(
    ("ours", "most_rows"),
    [
        ((1, 1, 1, 1, 1, 1), COUNTS[-1]),
        ((1, 1, 3, 3, 3, 3), COUNTS[1]),
        ((3, 3, 3, 3, 3, 3), 0),
        ((1, 2.5, 1, 2.5, 2.5, 2.5), COUNTS[2]),
        ((1, 1, 1, 1, 2.1, 2.4), COUNTS[-2]),
    ],
)
def test_the_reader_is_used_up_to_the_row_count_where_it_gains_most(ours: tuple[float, ...], most_rows: int) -> None:
    layer = packed_layer(64, 64, torch.float32)
    panels = panels_of(layer)
    assert panels is not None
    clock = ScriptedClock([(seconds, 2.0) for seconds in ours])
    assert most_rows_worth([panels], [layer.multiply_at_once], layer, clock) == most_rows


def test_a_clock_that_stands_still_says_that_both_are_alike() -> None:
    layer = packed_layer(64, 64, torch.float32)
    panels = panels_of(layer)
    assert panels is not None
    assert most_rows_worth([panels], [layer.multiply_at_once], layer, lambda: 1.0) == COUNTS[-1]


@pytest.mark.parametrize(("ours", "most_rows"), [((1, 1), COUNTS[-1]), ((1, 3), COUNTS[0]), ((3, 3), 0)])
def test_a_large_layer_is_timed_with_few_rows_alone(
    ours: tuple[float, ...], most_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = packed_layer(64, 64, torch.float32)
    panels = panels_of(layer)
    assert panels is not None
    monkeypatch.setattr("decoding.weights.readers.LONGEST", 64 * 64 * COUNTS[1])
    clock = ScriptedClock([(seconds, 2.0) for seconds in ours])
    assert most_rows_worth([panels], [layer.multiply_at_once], layer, clock) == most_rows


@pytest.mark.parametrize("most_rows", [0, 4, 64])
def test_up_to_that_many_rows_go_past_onednn(most_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = packed_layer(64, 96, torch.float32)
    panels = panels_of(layer)
    assert panels is not None
    counts: list[int] = []
    multiply = panels.multiply
    monkeypatch.setattr(panels, "multiply", lambda rows: counts.append(rows.shape[-2]) or multiply(rows))
    layer.read_panels(panels, most_rows)
    rows = torch.randn(1, 70, 64)
    whole = layer.multiply(rows)
    for count in (1, 2, 4, 5, 64, 65):
        part = layer.multiply(rows[:, :count])
        if count > 1 or most_rows:  # alone, oneDNN may round otherwise
            assert torch.equal(part, whole[:, :count])
    assert counts == [count for count in (1, 2, 4, 5, 64, 65) if count <= most_rows]


def test_rows_are_padded_only_for_onednn() -> None:
    rows = torch.ones(5, 3)
    assert padded(rows, few_rows=5) is rows
    assert len(padded(torch.ones(33, 3), few_rows=4)) == 36
    assert len(padded(rows[:1], few_rows=0)) == 2
    assert code_bytes(1, few_rows=64, most_rows=64) == 0
    assert code_bytes(1, few_rows=64, most_rows=72) == code_bytes(1, 0, 1)


def test_a_model_pads_as_its_least_served_layer_needs() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 32))
    replace(model, [packing_rule()])
    few_rows = [layer.matrix.few_rows for layer in model]
    assert num_few_rows(model) == min(few_rows)
    assert num_few_rows(nn.Sequential()) == sys.maxsize  # nothing is left to oneDNN
