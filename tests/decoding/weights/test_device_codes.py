"""Layers whose weights stay packed on a GPU multiply by what the packed numbers mean: Triton's kernels interpreted."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
import torch

from decoding.weights.groups import HAS_MINIMA, Groups, dequantized
from decoding.weights.linear import matrices_in, num_bytes_in, num_weights_in
from decoding.weights.numbers.device_codes import DeviceCodes
from tests.decoding.model.files.test_quantized_checkpoint import FORMATS, loaded, logits_of, write_checkpoint
from tests.matrices import linear_on_device, stored
from tests.row_exact import use_row_exact_dots

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.weights import device_products

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
CPU = torch.device("cpu")
KINDS = [(4, 32, 1, 8), (4, 32, 4, None), (4, 16, 1, None), (5, 32, 1, 16), (6, 16, 1, 32), (8, 32, 4, 128)]


def groups_of(shape: tuple[int, int], bits: int, group: int, repeats: int, zero: int | None) -> Groups:
    """Of random codes, with scales and minima that are float16 numbers. zero: the zero point, if there is one."""
    random = torch.Generator().manual_seed(bits + group)
    count = -(-shape[1] // group)
    codes = torch.randint(0, 2**bits, shape, generator=random, dtype=torch.uint8)
    scales, minima = (torch.rand(2, shape[0], -(-count // repeats), generator=random) / 8 + 0.01).half().float()
    wide = [each.repeat_interleave(repeats, 1)[:, :count].contiguous() for each in (scales, minima)]
    return Groups(codes, wide[0], wide[1] if zero is None else wide[0] * zero, bits, group)


@pytest.mark.parametrize("width", [128, 208])
@pytest.mark.parametrize(("bits", "group", "repeats", "zero"), KINDS)
def test_a_weight_is_unpacked_to_what_it_means(
    bits: int, group: int, repeats: int, zero: int | None, width: int
) -> None:
    """Each input alone brings its column of the matrix, which is given in two slices."""
    groups = groups_of((24, width), bits, group, repeats, zero)
    codes = stored(groups, repeats, slice_rows=16)
    packed = DeviceCodes.of(codes, None, torch.float32, CPU)
    assert packed.zero == (HAS_MINIMA if zero is None else zero)
    assert packed.num_bytes <= DeviceCodes.bytes_of(codes)
    assert zero is not None or packed.num_bytes == DeviceCodes.bytes_of(codes)
    columns = packed.multiply(torch.eye(width))
    assert torch.equal(columns.t(), dequantized(groups))


def test_a_row_has_the_same_bits_among_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    use_row_exact_dots(monkeypatch)
    monkeypatch.setattr(device_products, "LEAST_PART", 64)
    groups = groups_of((20, 150), 4, 32, 1, None)
    layer = linear_on_device(groups, torch.ones(20), torch.float16)
    rows = torch.randn(100, 150, generator=torch.Generator().manual_seed(1)).half()
    whole = layer(rows)
    expected = rows.double() @ dequantized(groups).double().t() + 1
    assert (whole - expected).abs().max() <= 5e-3 * expected.abs().max()
    for count in (1, 17, 64):
        assert torch.equal(layer(rows[:count]), whole[:count]), count


@pytest.mark.parametrize("name", ["W4A16 zero points", "GPTQ act-order", "AWQ 128", "FP8 blocks"])
def test_a_checkpoint_stays_packed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quantization, make, most = FORMATS[name]
    expected = logits_of(write_checkpoint(tmp_path, quantization, make, num_hidden_layers=1))
    monkeypatch.setattr("decoding.model.loading.has_kernels", lambda _: True)
    asked: list[int] = []
    monkeypatch.setattr("decoding.model.loading.check_weights_fit", lambda size, *_: asked.append(size))
    model = loaded(tmp_path)
    matrices = matrices_in(model)
    assert len(matrices) == 7
    assert any(matrix.columns_S is not None for matrix in matrices) == (name == "GPTQ act-order")
    assert (logits_of(model) - expected).abs().max() < (1e-3 + most) * expected.abs().max()
    whole = sum(each.numel() for each in model.parameters()) + sum(prod(matrix.shape) for matrix in matrices)
    assert num_weights_in(model) == whole
    assert num_bytes_in(model) <= asked[0] * 1.05
