"""Linear layers, means and norms give a row the same bits whatever the number of rows: Triton's kernels interpreted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from decoding.model.replacing.replacer import ReplacedFunctions
from decoding.model.seam import AttentionCall, observed
from tests.models import tiny
from tests.row_exact import use_row_exact_dots

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.model.device.row_exact import REPLACED, mean_of
from decoding.weights import device_products
from decoding.weights.device_products import FLOATS, HALVES, LEAST_PART, MOST_PARTS, linear, parts_of

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
COUNTS = (1, 2, 17, 64, 200)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3}
SUMMING = {"mm", "addmm", "bmm", "baddbmm", "linear", "mean", "sum", "native_layer_norm", "_fused_rms_norm", "var_mean"}


@pytest.fixture(autouse=True)
def _row_exact_products(monkeypatch: pytest.MonkeyPatch) -> None:
    use_row_exact_dots(monkeypatch)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.float32, False), (torch.float16, True)])
def test_a_row_has_the_same_bits_among_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, has_bias: bool
) -> None:
    """Of a layer in parts, which few rows have added up by another kernel, and whose width fills no tile."""
    monkeypatch.setattr(device_products, "LEAST_PART", 32)
    weight, rows = drawn(20, 130, dtype=dtype), drawn(max(COUNTS), 130, dtype=dtype)
    bias = drawn(20, dtype=dtype) if has_bias else None
    whole = linear(rows, weight, bias)
    expected = F.linear(rows.double(), weight.double(), None if bias is None else bias.double())
    assert (whole - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()
    for count in COUNTS:
        assert torch.equal(linear(rows[:count], weight, bias), whole[:count]), count
        assert torch.equal(linear(rows[-count:], weight, bias), whole[-count:]), count


def test_weights_may_lie_in_columns() -> None:
    weight, rows = drawn(40, 96), drawn(2, 3, 96)
    assert torch.equal(linear(rows, weight.t().contiguous().t()), linear(rows, weight))


def test_a_layer_is_cut_as_its_shape_says() -> None:
    assert parts_of(4096, 4096, HALVES, 132) == 4
    assert parts_of(152_000, 4096, HALVES, 132) == 1
    assert parts_of(64, 2 * LEAST_PART, HALVES, 132) == 2
    assert parts_of(64, 1 << 20, FLOATS, 132) == MOST_PARTS
    assert parts_of(64, 100, HALVES, 132) == 1


NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "mean": lambda rows: rows.mean(-1, keepdim=True),
    "mean without its dimension": lambda rows: torch.mean(rows, dim=-1),
    "layer norm": lambda rows: F.layer_norm(rows, (48,), drawn(48), drawn(48, 1)[:, 0], 1e-5),
    "rms norm": lambda rows: F.rms_norm(rows, (48,), drawn(48), 1e-6),
    "product with columns": lambda rows: torch.addmm(drawn(9), rows, drawn(48, 9)),
}


@pytest.mark.parametrize("name", NORMS)
def test_what_is_replaced_gives_what_it_gave(name: str) -> None:
    rows = drawn(7, 48)
    expected = NORMS[name](rows)
    with ReplacedFunctions(REPLACED):
        found, alone = NORMS[name](rows), NORMS[name](rows[:1])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(alone, found[:1])


def test_other_sums_are_left_alone() -> None:
    rows = drawn(3, 4, 5)
    with ReplacedFunctions(REPLACED):
        for found, expected in (
            (rows.mean(0), rows.sum(0) / 3),
            (rows.mean(), rows.sum() / 60),
            (F.layer_norm(rows, (4, 5)), F.layer_norm(rows.view(3, 20), (20,)).view(3, 4, 5)),
            (torch.mean(rows, -1, dtype=torch.float64), rows.double().sum(-1) / 5),
        ):
            torch.testing.assert_close(found, expected)
    assert mean_of(torch.ones(2, 3, dtype=torch.float16)).tolist() == [[1.0], [1.0]]


class _Summing(TorchDispatchMode):
    """found: operations that add up what belongs to a row."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.found |= {name} & SUMMING
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen2", "qwen3", "gemma2", "gemma3_text", "gpt_neox", "phi3", "olmo2", "smollm3"]
)
def test_nothing_that_a_dense_model_calls_rounds_by_the_number_of_rows(model_type: str) -> None:
    """But for attention, which has kernels of its own, and rotary tables, each of whose numbers is one product."""
    model, ids = tiny(model_type, vocab_size=64), torch.arange(2)[None]

    def attend(call: AttentionCall) -> torch.Tensor:
        groups = call.query_1HND.shape[1] // call.value_1KNV.shape[1]
        return call.value_1KNV.repeat_interleave(groups, 1).transpose(1, 2)

    with torch.inference_mode(), observed(model, attend):
        expected = model(input_ids=ids, use_cache=False).logits
        with ReplacedFunctions(REPLACED), _Summing() as summing:
            found = model(input_ids=ids, use_cache=False).logits
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
    assert summing.found <= {"bmm"}, "a rotary table's"
