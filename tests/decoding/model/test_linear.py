"""Prepacked and row-exact linears: the same map as torch's, and the same bits for a row in any company."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.pytorch_utils import Conv1D

from decoding.model.layers.norms import FusedRmsNorm, norm_rule
from decoding.model.linear import exact as exact_linear
from decoding.model.linear.exact import REPLACED, row_exact_linear
from decoding.model.linear.packed import packing_rule
from decoding.model.replacing.replacer import ReplacedFunctions, replace
from decoding.model.replacing.row_safe import ACTIVATIONS, ROTARIES, RotaryTable, RowSafeActivation, safe_length
from decoding.weights.linear import Linear, num_packed_shapes
from decoding.weights.numbers import onednn_floats
from decoding.weights.numbers.float_panels import FloatPanels, has_panels
from decoding.weights.numbers.onednn_floats import can_pack, onednn_packs
from tests.models import tiny

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
PLACES = [(0, 2), (1, 3), (5, 7), (20, 33), (0, 69)]
LARGE_PLACES = [(0, 128), (100, 65), (37, 256), (0, 511)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (256, 688), (768, 257), (2048, 768)])
def test_a_packed_linear_is_the_same_map_with_row_invariant_bits(shape: tuple[int, int], dtype: torch.dtype) -> None:
    if not can_pack(CPU, dtype):
        pytest.skip(f"this processor cannot pack {dtype}")
    torch.manual_seed(0)
    stock = nn.Linear(*shape).to(dtype)
    holder = nn.Sequential(stock)
    assert str(replace(holder, [packing_rule()])) == "1 of 1 linear layers packed"
    rows = torch.randn(512, shape[0]).to(dtype)
    with torch.inference_mode():
        packed = holder(rows)
        torch.testing.assert_close(packed, stock(rows), rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-2)
        for start, count in PLACES + LARGE_PLACES:
            assert torch.equal(holder(rows[start : start + count]), packed[start : start + count])


def test_packing_drops_the_originals_and_reads_the_transposed_kind() -> None:
    torch.manual_seed(0)
    transposed = Conv1D(24, 16)
    rows = torch.randn(3, 16)
    expected = transposed(rows)
    holder = nn.Sequential(transposed)
    replace(holder, [packing_rule()])
    assert isinstance(holder[0], Linear)
    assert sum(parameter.numel() for parameter in holder.parameters()) == 0
    torch.testing.assert_close(holder(rows), expected)


def test_layers_of_a_shape_whose_bits_few_rows_change_in_onednn_are_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn_floats, "exact_row_limit", lambda *_: 0)
    torch.manual_seed(0)
    layers = [nn.Linear(64, 96), nn.Linear(96, 40, bias=False)]
    holder = nn.Sequential(*layers)
    rows = torch.randn(512, 64)
    with torch.inference_mode():
        expected = holder(rows)
        replace(holder, [packing_rule()])
        assert [type(layer.matrix.numbers) for layer in holder] == [FloatPanels, FloatPanels]
        found = holder(rows)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
        for start, count in [(0, 1), *PLACES, *LARGE_PLACES]:
            assert torch.equal(holder(rows[start : start + count]), found[start : start + count])
    assert num_packed_shapes(holder) == 0  # oneDNN compiles nothing for them


def test_only_cpu_float32_and_bfloat16_are_packed() -> None:
    assert can_pack(CPU, torch.float32)
    assert not can_pack(CPU, torch.float64)
    assert not can_pack(torch.device("meta"), torch.float32)


def test_a_processor_that_cannot_pack_says_so_instead_of_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> torch.Tensor:
        raise RuntimeError("bf16 path needs the cpu support avx512")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    assert not onednn_packs(torch.bfloat16)
    assert can_pack(CPU, torch.bfloat16) == has_panels(CPU, torch.bfloat16)


@pytest.mark.parametrize("least_work", [0, 1 << 60])
@pytest.mark.parametrize("shape", [(64, 4), (37, 19), (96, 200)])
def test_a_row_exact_linear_is_the_same_map(
    shape: tuple[int, int], least_work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_linear, "PARALLEL_WORK", least_work)
    torch.manual_seed(0)
    weight, bias, rows = torch.randn(shape[1], shape[0]), torch.randn(shape[1]), torch.randn(2, 40, shape[0])
    whole = row_exact_linear(rows, weight, bias)
    torch.testing.assert_close(whole, F.linear(rows, weight, bias), rtol=1e-4, atol=1e-4)
    for start, count in ((0, 1), (3, 2), (5, 17), (39, 1)):
        part = row_exact_linear(rows[1, start : start + count], weight, bias)
        assert torch.equal(part, whole[1, start : start + count])


def test_functional_linears_are_replaced_in_float32_only() -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(96, 33), torch.randn(5, 33)
    with ReplacedFunctions(REPLACED):
        caught = F.linear(rows, weight)
        other = F.linear(rows.double(), weight.double())
    assert torch.equal(caught, row_exact_linear(rows, weight))
    assert torch.equal(other, F.linear(rows.double(), weight.double()))


@pytest.mark.parametrize("name", ["silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "quick_gelu"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_activation_gives_a_row_the_same_bits_in_any_company(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    stock = ACT2FN[name]
    holder = nn.Sequential(stock)
    replace(holder, [ACTIVATIONS])
    assert isinstance(holder[0], RowSafeActivation)
    rows = torch.randn(700, 171).to(dtype)
    whole = holder(rows)
    torch.testing.assert_close(whole, stock(rows))
    for start, count in [*PLACES, (0, 1), (333, 311), (699, 1)]:
        assert torch.equal(holder(rows[start : start + count]), whole[start : start + count])
    halves = torch.randn(9, 342).to(dtype).chunk(2, dim=-1)[1]
    assert torch.equal(holder(halves), holder(halves.contiguous()))


def test_safe_lengths_give_every_thread_whole_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    for num_threads in (1, 2, 3, 7, 64):
        monkeypatch.setattr(torch, "get_num_threads", lambda count=num_threads: count)
        for count in (1, 64, 688, 32767, 32769, 65536 + 3, 1_000_001):
            padded = safe_length(count, 64)
            used = min(num_threads, -(-padded // 32768))
            assert padded >= count
            assert padded % (64 * used) == 0


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_rotary_tables_hold_what_the_module_computes(model_type: str) -> None:
    model = tiny(model_type)
    rotary = model.model.rotary_emb
    positions = torch.tensor([[3, 900, 7, 5000]])
    kinds = [()] if model_type == "llama" else [("full_attention",), ("sliding_attention",)]
    hidden = torch.zeros(1, 4, 64)
    expected = [rotary(hidden, positions, *kind) for kind in kinds]
    replace(model, [ROTARIES])
    table = model.model.rotary_emb
    assert isinstance(table, RotaryTable)
    for kind, pair in zip(kinds, expected, strict=True):
        table(hidden, torch.tensor([[1]]), *kind)  # a short table first, to be extended
        torch.testing.assert_close(table(hidden, positions, *kind), pair)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_norms_compute_what_the_models_own_do(model_type: str, dtype: torch.dtype) -> None:
    model = tiny(model_type).to(dtype)
    torch.manual_seed(0)
    norm = model.model.norm
    with torch.no_grad():
        norm.weight.add_(torch.randn(norm.weight.shape) * 0.2)
    rows = (torch.randn(70, 64) * 3).to(dtype)
    with torch.inference_mode():
        expected = norm(rows)
        replace(model, [norm_rule(dtype)])
        fused = model.model.norm
        assert isinstance(fused, FusedRmsNorm)
        whole = fused(rows)
        torch.testing.assert_close(whole, expected, rtol=1e-5 if dtype == torch.float32 else 8e-3, atol=1e-5)
        for start, count in PLACES:
            assert torch.equal(fused(rows[start : start + count]), whole[start : start + count])
