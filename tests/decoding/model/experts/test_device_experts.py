"""All chosen experts in one launch give the sums of transformers' own code, and a row the same bits in any company:
Triton's kernels interpreted."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from decoding.attention.reference import ReferenceAttention
from decoding.model.experts.gates import gate_of
from decoding.model.experts.separate import CHILD, ExpertLayers, SeparateExperts, adopt, own_forward
from decoding.model.replacing import replacer
from decoding.model.replacing.replacer import Report
from decoding.model.seam import Seam
from decoding.weights.groups import dequantized, quantized
from tests.matrices import linear_on_device
from tests.models import tiny
from tests.recording import RecordingCapture
from tests.row_exact import use_row_exact_dots

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.model.experts.device_experts import OTHER_FORM, OTHER_PACKING, GroupedExperts, packed_rule, whole_rule

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
CPU = torch.device("cpu")
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v3"]
NUM_EXPERTS, RANKS, WIDTH = 7, 3, 64
COUNTS = (1, 2, 17)
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3}


def grouped(model: nn.Module) -> Report:
    return replacer.replace(model, [whole_rule(), packed_rule()])


def mixture(model_type: str = "qwen3_moe", dtype: torch.dtype = torch.float32) -> Any:
    """A model's experts, which the kernels run."""
    fields = {"num_local_experts" if model_type in ("gpt_oss", "mixtral") else "num_experts": NUM_EXPERTS}
    fields = {"n_routed_experts": NUM_EXPERTS} if model_type == "deepseek_v3" else fields
    modules = tiny(model_type, moe_intermediate_size=48, **fields).to(dtype).modules()
    experts = next(each for each in modules if type(each).__name__.endswith("Experts"))
    grouped(nn.ModuleList([experts]))
    assert isinstance(experts.get_submodule(CHILD), GroupedExperts)
    return experts


def routed(num_rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Most rows choose the second expert, and none the third."""
    random = torch.Generator().manual_seed(num_rows)
    likely = torch.tensor([1.0, 9.0, 0.0, 1.0, 1.0, 1.0, 1.0]).expand(num_rows, NUM_EXPERTS)
    chosen = torch.multinomial(likely, RANKS, generator=random)
    rows = torch.randn(num_rows, WIDTH, generator=random).to(dtype)
    return rows, chosen, torch.rand(num_rows, RANKS, generator=random).to(dtype)


@pytest.mark.parametrize("model_type", MIXTURES)
def test_experts_give_what_transformers_own_code_does(model_type: str) -> None:
    experts = mixture(model_type)
    arguments = routed(40)
    with torch.inference_mode():
        found = experts(*arguments)
        for expected in (own_forward(experts, *arguments), ALL_EXPERTS_FUNCTIONS["grouped_mm"](experts, *arguments)):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize(("model_type", "dtype"), [("qwen3_moe", torch.float32), ("gpt_oss", torch.float16)])
def test_a_row_has_the_same_bits_in_any_company(
    monkeypatch: pytest.MonkeyPatch, model_type: str, dtype: torch.dtype
) -> None:
    use_row_exact_dots(monkeypatch)
    experts = mixture(model_type, dtype)
    rows, chosen, shares = routed(max(COUNTS) + 9, dtype)
    with torch.inference_mode():
        whole = experts(rows, chosen, shares)
        expected = own_forward(experts, rows, chosen, shares)
        assert (whole - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()
        for count in COUNTS:
            for part in (slice(count), slice(-count, None)):
                assert torch.equal(experts(rows[part], chosen[part], shares[part]), whole[part]), count
        assert torch.equal(experts(rows, chosen.flip(1), shares.flip(1)), whole), "in whichever order they are named"


def test_numbers_beyond_the_experts_mean_none() -> None:
    experts = mixture()
    rows, chosen, shares = routed(5)
    chosen[1] = chosen[3, 0] = chosen[4, 2] = NUM_EXPERTS
    some, none = chosen.clamp(max=NUM_EXPERTS - 1), chosen == NUM_EXPERTS
    with torch.inference_mode():
        found, expected = experts(rows, chosen, shares), own_forward(experts, rows, some, shares.masked_fill(none, 0))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert not found[1].any()


def test_a_captured_launch_waits_for_nothing_and_fits_any_choice() -> None:
    experts = mixture()
    rows, chosen, shares = routed(40)
    found = torch.empty_like(rows)
    with torch.inference_mode():
        replay = RecordingCapture().note(lambda: found.copy_(experts(rows, chosen, shares)))
        chosen.copy_(chosen.flip(0))
        chosen[5:] = torch.arange(RANKS)  # most of them, so that tiles are in other places
        replay()
        expected = own_forward(experts, rows, chosen, shares)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def packed_layers(num_outputs: int, width: int, bits: int, zero: int | None) -> tuple[nn.Module, nn.Module]:
    """A layer of random numbers, and one of the numbers that these are packed to."""
    groups = quantized(torch.randn(num_outputs, width) * width**-0.5, bits)
    groups = groups if zero is None else replace(groups, minima_OG=zero * groups.scales_OG)
    packed = linear_on_device(groups)
    plain = nn.Linear(width, num_outputs, bias=False)
    plain.weight = nn.Parameter(dequantized(groups))
    return packed, plain


def packed_mixture(bits: int, zero: int | None, bits_of_ups: int) -> tuple[nn.Module, SeparateExperts]:
    """A mixture whose experts are packed one by one, and experts of the numbers that they are packed to."""
    torch.manual_seed(3)
    experts = tiny("qwen3_moe", moe_intermediate_size=48, num_experts=NUM_EXPERTS).model.layers[0].mlp.experts
    sides = [(48, WIDTH, bits), (48, WIDTH, bits_of_ups), (WIDTH, 48, bits)]
    pairs = [[packed_layers(*side, zero) for side in sides] for _ in range(NUM_EXPERTS)]
    join = gate_of(experts)
    packed, plain = (
        SeparateExperts([ExpertLayers(*(each[kind] for each in own)) for own in pairs], join, None) for kind in (0, 1)
    )
    adopt(experts, packed)
    return experts, plain


@pytest.mark.parametrize(("bits", "zero"), [(4, None), (4, 8), (8, None)])
def test_packed_experts_are_multiplied_as_they_are(bits: int, zero: int | None) -> None:
    experts, plain = packed_mixture(bits, zero, bits)
    grouped(nn.ModuleList([experts]))
    assert isinstance(experts.get_submodule(CHILD), GroupedExperts)
    with torch.inference_mode():
        found, expected = experts(*routed(20)), plain.one_by_one(*routed(20))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-3 * float(expected.abs().max()))


def test_experts_that_are_packed_in_several_ways_are_run_one_by_one() -> None:
    experts, plain = packed_mixture(4, None, 8)
    assert grouped(nn.ModuleList([experts])).reasons == (OTHER_PACKING,)
    assert isinstance(experts.get_submodule(CHILD), SeparateExperts)
    with torch.inference_mode():
        found, expected = experts(*routed(3)), plain.one_by_one(*routed(3))
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=2e-3 * float(expected.abs().max()))


def test_one_mixture_that_computes_something_else_leaves_all_to_transformers() -> None:
    model = tiny("qwen3_moe")
    experts = model.model.layers[1].mlp.experts
    experts.register_parameter("scale", nn.Parameter(torch.ones(1)))
    before = experts.config._experts_implementation
    assert grouped(model).reasons == (OTHER_FORM,)
    assert not any(isinstance(each, GroupedExperts) for each in model.modules())
    assert experts.config._experts_implementation == before


def test_padding_of_a_step_chooses_no_expert() -> None:
    experts, (rows, chosen, shares) = mixture(), routed(5)
    segments = torch.tensor([0, 0, 1, -1, -1], dtype=torch.int32)
    with torch.inference_mode():
        expected = experts(rows, chosen, shares)
        with Seam([], ReferenceAttention()).running(SimpleNamespace(row_segments_T=segments)):
            found = experts(rows, chosen, shares)
            other = experts(rows[:4], chosen[:4], shares[:4])  # rows that are not the step's
    assert torch.equal(found[:3], expected[:3])
    assert not found[3:].any()
    assert torch.equal(other, expected[:4])
