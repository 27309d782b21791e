"""Mixtures of experts in one region: the sums of experts run one by one, and the same bits in any company."""

from __future__ import annotations

from functools import wraps

import pytest
import torch
from torch import nn

from decoding.config import EngineConfig
from decoding.kernels.cpu.program import MOST_ROWS
from decoding.model.experts.cpu_experts import FusedExperts, together_rule
from decoding.model.experts.gates import ClampedGate, GateKernel
from decoding.model.experts.reading import NO_KERNEL, separating_rule
from decoding.model.experts.separate import SERVED, ExpertLayers, SeparateExperts, own_forward
from decoding.model.layers.activations import FusedSilu
from decoding.model.replacing.replacer import replace
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
from decoding.weights.kinds import INT4, INT8, KINDS
from decoding.weights.linear import Linear
from decoding.weights.matrix import Matrix, Target
from decoding.weights.numbers.float_panels import has_panels
from decoding.weights.rounding import can_round_to_int8
from tests.models import tiny

CPU = torch.device("cpu")
NUM_EXPERTS, RANKS = 7, 3
SHAPES = [(64, 32), (96, 80), (130, 66)]  # model width, inner width
FORMS = ["float32", "bfloat16", "int8", "int4"]
MIXTURES = ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "deepseek_v3"]
LIMIT = 2.0


def linear(weight: torch.Tensor, bias: torch.Tensor | None, form: str) -> nn.Module:
    if form in (INT4, INT8):
        return Linear(Matrix.of(weight, bias).rounded(KINDS[form]).packed(Target(weight.dtype, CPU, is_packed=True)))
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    with torch.no_grad():
        plain.weight.copy_(weight)
        if bias is not None:
            plain.bias.copy_(bias)
    return plain.to(getattr(torch, form))


def mixture(form: str, shape: tuple[int, int], is_clamped: bool = False) -> SeparateExperts:
    if not (can_round_to_int8(CPU, torch.float32) if form == "int8" else has_panels(CPU, dtype_of(form))):
        pytest.skip(f"this processor cannot multiply {form}")
    torch.manual_seed(0)
    width, inner = shape

    def layer(num_outputs: int, num_inputs: int) -> nn.Module:
        bias = torch.randn(num_outputs) if is_clamped else None
        return linear(torch.randn(num_outputs, num_inputs) * num_inputs**-0.5, bias, form)

    layers = [ExpertLayers(layer(inner, width), layer(inner, width), layer(width, inner)) for _ in range(NUM_EXPERTS)]
    if is_clamped:
        kernel: GateKernel = ClampedGate(1.5, LIMIT, dtype_of(form))
        return SeparateExperts(layers, lambda gate, up: ClampedGate.formula(gate, up, 1.5, LIMIT), kernel)
    return SeparateExperts(layers, lambda gate, up: nn.functional.silu(gate) * up, FusedSilu(dtype_of(form)))


def run_together(experts: SeparateExperts, dtype: torch.dtype) -> int:
    """How many mixtures do."""
    return len(replace(nn.ModuleList([experts]), [together_rule(dtype, "")]).forms[0].stand_ins)


def dtype_of(form: str) -> torch.dtype:
    return torch.bfloat16 if form == "bfloat16" else torch.float32


def routed(num_rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(num_rows)
    chosen = torch.stack([torch.randperm(NUM_EXPERTS)[:RANKS] for _ in range(num_rows)])
    return torch.randn(num_rows, width).to(dtype), chosen, torch.rand(num_rows, RANKS).to(dtype)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("is_clamped", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_experts_together_give_the_sums_of_experts_one_by_one(
    form: str, shape: tuple[int, int], is_clamped: bool
) -> None:
    experts, dtype = mixture(form, shape, is_clamped), dtype_of(form)
    rows, chosen, shares = routed(20, shape[0], dtype)
    with torch.inference_mode():
        expected = experts(rows, chosen, shares)
        assert run_together(experts, dtype) == 1
        assert isinstance(experts.runner, FusedExperts)
        found = experts(rows, chosen, shares)
    tolerance = 3e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_any_company(form: str) -> None:
    experts, dtype = mixture(form, (96, 80)), dtype_of(form)
    run_together(experts, dtype)
    rows, chosen, shares = routed(MOST_ROWS + 37, 96, dtype)  # more than one program takes
    with torch.inference_mode():
        whole = experts(rows, chosen, shares)
        for start, count in ((0, 1), (3, 2), (40, 17), (511, 3), (MOST_ROWS, 37)):
            part = slice(start, start + count)
            assert torch.equal(experts(rows[part], chosen[part], shares[part]), whole[part])
        turned = experts(rows, chosen.flip(1), shares.flip(1))  # the order in which a router names experts is no order
        torch.set_num_threads(3 - torch.get_num_threads())
        assert torch.equal(experts(rows, chosen, shares), whole)
    assert torch.equal(turned, whole)


def test_numbers_beyond_the_experts_mean_none() -> None:
    experts = mixture("float32", (64, 32))
    rows, chosen, shares = routed(5, 64, torch.float32)
    chosen[1] = chosen[3, 0] = chosen[4, 2] = NUM_EXPERTS
    with torch.inference_mode():
        expected = experts(rows, chosen, shares)
        run_together(experts, torch.float32)
        torch.testing.assert_close(experts(rows, chosen, shares), expected)
        assert not experts(rows, chosen, shares)[1].any()
        assert experts(rows[:0], chosen[:0], shares[:0]).shape == (0, 64)


@pytest.mark.parametrize("model_type", MIXTURES)
def test_a_models_experts_are_read_as_what_they_compute(model_type: str) -> None:
    model = tiny(model_type)
    own = [each for each in model.modules() if type(each).__name__.endswith("Experts")]
    num_experts = own[0].num_experts
    rows, chosen = torch.randn(9, 64), torch.randint(num_experts, (9, 1))
    shares = torch.rand(9, 1)
    with torch.inference_mode():
        expected = own_forward(own[-1], rows, chosen, shares)
        assert len(replace(model, [SERVED]).forms[0].stand_ins) == len(own)
        assert torch.equal(own[-1](rows, chosen, shares), expected)  # nobody adopted it yet
        rules = [separating_rule(torch.float32, ""), together_rule(torch.float32, "")]
        assert [len(each.stand_ins) for each in replace(model, rules).forms] == 2 * [len(own)]
        torch.testing.assert_close(own[-1](rows, chosen, shares), expected)
    assert [name for name, _ in own[-1].named_parameters()] == []


def test_experts_that_compute_something_else_stay_as_they_are() -> None:
    model = tiny("qwen3_moe", hidden_act="gelu")
    replace(model, [SERVED])
    assert replace(model, [separating_rule(torch.float32, "")]).reasons == (NO_KERNEL,)
    model = tiny("qwen3_moe")
    experts = model.model.layers[1].mlp.experts
    own = type(experts)

    def doubled(self: nn.Module, *arguments: torch.Tensor) -> torch.Tensor:
        return 2 * own.forward.__wrapped__(self, *arguments)

    changed = type(own.__name__, (own,), {"forward": wraps(doubled)(doubled)})
    experts.__class__ = changed
    (separated,) = replace(model, [separating_rule(torch.float32, "")]).forms
    assert len(separated.stand_ins) == separated.num_found - 1 == len(model.model.layers) - 1
    assert separated.reasons[0].startswith("it gives results that differ by ")


class ListedExpert(nn.Module):
    def __init__(self, gate_up_2NE: torch.Tensor, down_EN: torch.Tensor) -> None:
        super().__init__()
        gate_NE, up_NE = gate_up_2NE.chunk(2)
        self.gate_proj, self.up_proj, self.down_proj = (
            linear(weight, None, "float32") for weight in (gate_NE, up_NE, down_EN)
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down_proj(nn.functional.silu(self.gate_proj(rows)) * self.up_proj(rows))
        return result


class ListedMixture(nn.Module):
    """As modelling code had mixtures before their experts shared a tensor: a list of modules, run one by one."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.top_k = block.gate.top_k
        self.gate = linear(block.gate.weight.detach(), None, "float32")
        pairs = zip(block.experts.gate_up_proj.detach(), block.experts.down_proj.detach(), strict=True)
        self.experts = nn.ModuleList(ListedExpert(*pair) for pair in pairs)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.view(-1, hidden.shape[-1])
        shares, chosen = torch.topk(nn.functional.softmax(self.gate(rows), dim=-1), self.top_k, dim=-1)
        total = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            places, ranks = torch.where(chosen == number)
            total.index_add_(0, places, expert(rows[places]) * shares[places, ranks, None])
        return total.view(hidden.shape)


@pytest.mark.parametrize("weights", ["auto", "int4"])
def test_experts_that_are_a_list_of_modules_are_served_as_the_layers_that_they_are(weights: str) -> None:
    model, listed = tiny("qwen3_moe", num_hidden_layers=2), tiny("qwen3_moe", num_hidden_layers=2)
    for layer in listed.model.layers:
        layer.mlp = ListedMixture(layer.mlp)
    config = EngineConfig(threads=1, max_model_len=256, weights=weights)  # type: ignore[arg-type]
    together, one_by_one = (TargetModel.from_model(each, config) for each in (model, listed))
    assert together.is_exact
    assert one_by_one.is_exact
    found, expected = (each.forward(long_chain(each)) for each in (one_by_one, together))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
