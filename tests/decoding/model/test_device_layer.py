"""Fused layers compute what the layers that they stand for do, in few launches, and give a row the same bits in any
company: Triton's kernels interpreted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from decoding.bench.gpu.cost_model import LAUNCHES
from decoding.cache.batch import Segment, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.step_tensors import StepBuffers, StepTensors, room_of
from decoding.config import EngineConfig
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.parallel.shards import summing_rule
from decoding.model.replacing import replacer
from decoding.model.replacing.replacer import Forwards, Replaced
from decoding.model.self_test import self_test_case, trial_steps
from decoding.model.target_model import TargetModel
from decoding.weights.groups import dequantized
from tests.decoding.model.device.test_graph_runner import SAME, steps
from tests.decoding.weights.test_device_codes import groups_of
from tests.matrices import linear_on_device
from tests.models import tiny
from tests.recording import RecordingCapture
from tests.row_exact import use_row_exact_products
from tests.trees import random_parents
from tests.triton_variants import num_variants

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.attention.triton.triton_attention import TritonAttention
from decoding.model.layers.device_layer import DeviceLayer, DeviceMlp, OwnMlp
from decoding.model.layers.device_parts import OTHER_FORM, layer_rule

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
CONFIG = EngineConfig(attention="padded", max_model_len=128, threads=1)  # which is quick to test while it is loaded
SHAPE = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2}
PREFIX, ROOM = 5, 16  # tokens


def load(model_type: str, dtype: torch.dtype = torch.float32, **shape: Any) -> tuple[TargetModel, Replaced]:
    return fused(tiny(model_type, **SHAPE | shape).to(dtype))


def fused(own: Any) -> tuple[TargetModel, Replaced]:
    """As a model with Triton's attention is loaded, but for the tests of it."""
    model = TargetModel.from_model(own, CONFIG, RecordingCapture())
    model._seam.backend = TritonAttention(model.layers, model.dtype, model.device)
    trials = trial_steps(model, self_test_case(model.vocab_size))
    (layers,) = replacer.replace(own, [layer_rule(model._seam)], Forwards(model._run, trials)).forms
    return model, layers


def told(fusion: Replaced) -> tuple[int, tuple[str, ...]]:
    """How many layers are fused, and why others are not."""
    return len(fusion.stand_ins), fusion.reasons


def fused_layers(model: TargetModel) -> list[DeviceLayer]:
    return [each for each in model._model.modules() if isinstance(each, DeviceLayer)]


def logits_of(model: TargetModel, num_nodes: int = 9) -> torch.Tensor:
    """Of a prompt's last token and of a tree after it."""
    cache = KvCache(model.new_store(8))
    rows, tokens = cache.new_rows(ROOM), np.arange(ROOM, dtype=np.int32) * 7 % model.vocab_size
    before = model.forward(pack([Segment(rows, tokens[:PREFIX], None, "last")], cache.store))
    cache.store.commit(rows, np.arange(PREFIX, dtype=np.int32))
    parents = random_parents(num_nodes, np.random.default_rng(2))
    after = model.forward(pack([Segment(rows, tokens[PREFIX : PREFIX + num_nodes], parents)], cache.store))
    return torch.cat((before, after))


def by_its_own_code(model: TargetModel) -> TargetModel:
    """With the layers that were replaced."""
    for layer in fused_layers(model):
        layer.forward = layer.layer.forward  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("model_type", "dtype", "shape"),
    [
        ("llama", torch.float16, {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", torch.float32, {"num_attention_heads": 4, "num_key_value_heads": 2}),
        ("qwen3", torch.float32, {"hidden_size": 80}),
        pytest.param("llama", torch.float32, {"head_dim": 24, "num_hidden_layers": 2}, marks=pytest.mark.slow),
        pytest.param("qwen2", torch.float16, {}, marks=pytest.mark.slow),
        pytest.param("qwen3", torch.float16, {}, marks=pytest.mark.slow),
        pytest.param("qwen3_moe", torch.float32, {}, marks=pytest.mark.slow),
    ],
)
def test_a_fused_layer_computes_what_the_layer_does(model_type: str, dtype: torch.dtype, shape: dict[str, Any]) -> None:
    model, fusion = load(model_type, dtype, **shape)
    layers = fused_layers(model)
    assert told(fusion) == (len(model.layers), ()) == (len(layers), ())
    kinds = {type(each._parts.mlp) for each in layers}
    assert kinds == ({OwnMlp} if model_type == "qwen3_moe" else {DeviceMlp})
    found = logits_of(model)
    expected = logits_of(by_its_own_code(model))
    assert (found - expected).abs().max() <= TOLERANCES[dtype] * expected.abs().max()


@pytest.mark.slow
def test_over_fp8_a_fused_layer_stores_and_computes_what_the_layer_does() -> None:
    shape = SHAPE | {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
    config = EngineConfig(attention="triton", kv_dtype="fp8", max_model_len=64, threads=1)
    model = TargetModel.from_model(tiny("llama", **shape), config, RecordingCapture())
    assert len(fused_layers(model)) == 1
    assert model.new_store(1).dtype == torch.float8_e4m3fn
    found = logits_of(model)
    assert (found - logits_of(by_its_own_code(model))).abs().max() <= 1e-4 * found.abs().max()


def test_sums_over_ranks_that_hang_on_its_products_are_part_of_it() -> None:
    own, calls = tiny("llama", **SHAPE), list[tuple[int, ...]]()

    def doubled(output: torch.Tensor) -> torch.Tensor:
        calls.append(tuple(output.shape))
        return 2 * output

    ranks: Any = SimpleNamespace(sum=doubled)
    report = replacer.replace(own.model.layers, [summing_rule(ranks, torch.device("cuda"))])
    layer = own.model.layers[0]
    assert report.forms[0].stand_ins == (layer.self_attn.o_proj, layer.mlp.down_proj)
    model, fusion = fused(own)
    assert told(fusion) == (1, ())
    calls.clear()
    found = logits_of(model)
    assert len(calls) == 4, "of attention and MLP, in a prompt and a tree"
    assert (found - logits_of(by_its_own_code(model))).abs().max() <= TOLERANCES[torch.float32] * found.abs().max()


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [pytest.param("llama", torch.float32, marks=pytest.mark.slow), ("qwen3", torch.float16)],
)
def test_a_row_has_the_same_bits_alone_and_among_17(
    monkeypatch: pytest.MonkeyPatch, model_type: str, dtype: torch.dtype
) -> None:
    use_row_exact_products(monkeypatch)
    model, fusion = load(model_type, dtype)
    assert told(fusion) == (1, ())
    tokens = np.arange(17, dtype=np.int32) * 5 % model.vocab_size
    together, alone = KvCache(model.new_store(4)), KvCache(model.new_store(4))
    both, rows = together.new_rows(17), alone.new_rows(17)
    whole = model.forward(pack([Segment(both, tokens)], together.store))
    for place in range(17):
        found = model.forward(pack([Segment(rows, tokens[place : place + 1])], alone.store))
        assert torch.equal(found[0], whole[place]), place
        alone.store.commit(rows, np.zeros(1, np.int32))
    for layer in model.layers:  # what they leave in the cache, of which the first block is full
        for one, other in zip(*(each.store.planes(layer.index) for each in (together, alone)), strict=True):
            assert torch.equal(one[both.table.blocks[0]], other[rows.table.blocks[0]])


def _run(model: TargetModel, step: StepTensors) -> None:
    model.run_static(step)


def launches(num_layers: int) -> Counter[str]:
    """Of a captured forward of a Qwen3: matrix products, and everything else that is queued."""
    model, _ = load("qwen3", num_hidden_layers=num_layers)
    cache = KvCache(model.new_store(8))
    batch = pack([Segment(cache.new_rows(8), np.arange(8, dtype=np.int32))], cache.store)
    work = model._seam.backend.share_out(batch)  # type: ignore[attr-defined]
    step = StepBuffers(cache.store, room_of(batch, work)).stage(batch, 8, work)
    capture = RecordingCapture()
    capture.note(partial(_run, model, step))
    names = ["kernel" if isinstance(each.call, partial) else str(each.call) for each in capture._recorded[0]]
    products = ("aten.mm", "aten.addmm", "aten.linear")
    return Counter("products" if name.startswith(products) else "others" for name in names if "empty" not in name)


def test_a_layer_is_eleven_launches() -> None:
    counted = launches(2) - launches(1)
    products, attention, others = LAUNCHES["fused"]
    assert counted == {"products": products, "others": attention + others}
    assert counted.total() == 11


def test_one_capture_fits_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.model.device.graph_runner.BUCKETS", (12,))
    model, _ = load("qwen2")
    model.fixed_rows = 1
    cache = KvCache(model.new_store(40))
    runner = model.runner_over(cache.store, 128, 12)
    assert isinstance(runner, GraphRunner)
    for batch in islice(steps(cache), 3):  # a prompt, a root, and what two others begin with
        assert runner.holds(batch)
        replayed = runner.launch(batch).logits_RV.clone()
        torch.testing.assert_close(replayed, model.forward(batch), **SAME)


def test_weights_are_there_once_and_serve_both() -> None:
    layer = fused_layers(load("qwen2")[0])[0]
    attention: Any = layer.layer.self_attn
    mlp: Any = layer.layer.mlp
    for joined in ([attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]):
        assert len({each.weight.untyped_storage().data_ptr() for each in joined}) == 1
        whole = joined[0].weight.untyped_storage().nbytes()
        assert whole == sum(each.weight.nbytes for each in joined)


CHANGES: dict[str, Callable[[nn.Module, Any], Any]] = {
    "mlp": lambda _module, output: 2 * output,
    "self_attn.q_proj": lambda _module, output: output.flip(-1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_that_computes_something_else_stays_as_it_is(name: str) -> None:
    own = tiny("llama", **SHAPE)
    own.model.layers[0].get_submodule(name).register_forward_hook(
        lambda module, _inputs, output: CHANGES[name](module, output)
    )
    model, fusion = fused(own)
    assert not fusion.stand_ins
    assert fusion.reasons[0].startswith("it gives results that differ by ")
    assert not fused_layers(model)
    assert torch.isfinite(logits_of(model)).all()


def test_layers_without_rotation_and_of_other_forms_stay_as_they_are() -> None:
    model, fusion = load("smollm3", num_hidden_layers=2)
    assert [type(each) is DeviceLayer for each in model._model.model.layers] == [True, False]
    assert (len(fusion.stand_ins), len(fusion.reasons)) == (1, 1)
    for model_type in ("olmo2", "gpt_neox"):
        assert told(load(model_type)[1]) == (0, (OTHER_FORM,))


def test_a_kernel_that_cannot_run_leaves_the_model_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise ValueError("a kernel takes more than the device has")

    monkeypatch.setattr("decoding.model.layers.device_layer.gated", failing)
    assert told(load("llama")[1]) == (0, ("a kernel takes more than the device has",))


@pytest.mark.slow
def test_packed_layers_are_multiplied_one_by_one() -> None:
    own, plain = (tiny("qwen2", **SHAPE) for _ in range(2))
    for name, module in list(plain.model.layers.named_modules()):
        if isinstance(module, nn.Linear):
            shape = (module.out_features, module.in_features)
            groups = groups_of(shape, 8, 32, 1, 128)
            groups = replace(groups, scales_OG=groups.scales_OG / 64, minima_OG=groups.minima_OG / 64)
            bias_O = None if module.bias is None else module.bias.detach()
            own.model.layers.set_submodule(name, linear_on_device(groups, bias_O))
            module.weight.data = dequantized(groups)
    model, fusion = fused(own)
    assert told(fusion) == (1, ())
    expected = logits_of(fused(plain)[0])
    assert (logits_of(model) - expected).abs().max() <= 5e-3 * expected.abs().max()


@pytest.mark.slow
def test_a_model_is_fused_as_it_is_loaded_and_says_so() -> None:
    lines: list[str] = []
    own, config = tiny("llama", **SHAPE), replace(CONFIG, attention="triton")
    model = TargetModel(own, config, lambda sentence, _: lines.append(sentence), RecordingCapture())
    assert any("1 of 1 layers fused" in each for each in lines)
    assert len(fused_layers(model)) == 1
    other = TargetModel(
        tiny("gpt_neox", **SHAPE), config, lambda sentence, _: lines.append(sentence), RecordingCapture()
    )
    assert any(f"0 of 1 layers fused (others are not: {OTHER_FORM})" in each for each in lines)
    assert not fused_layers(other)


PROGRAM = """
    from types import SimpleNamespace
    import torch
    from decoding.bench.kernels.compile import layer_of
    from decoding.model.layers.device_layer import Norm, added, gated, normalised, rotated

    spec, norm = layer_of(4, 16, 16), Norm(torch.ones(64), 1e-6)
    planes = torch.zeros(9, 8, 16, 16), torch.zeros(9, 8, 16, 16)
    for count in (1, 2, 15, 16, 17, 64, 100):
        rows, tables = torch.zeros(count, 64), torch.zeros(count, 16)
        step = SimpleNamespace(
            store=SimpleNamespace(planes=lambda _: planes), slots_T=torch.zeros(count, dtype=torch.int32)
        )
        given = torch.zeros(count, 48 * 16).split([32 * 16, 8 * 16, 8 * 16], 1)
        normalised(rows, norm), added(rows, rows, norm), gated(*torch.zeros(count, 192).chunk(2, 1))
        rotated(given, (), tables, tables, spec, step)
        rotated(given, (Norm(torch.ones(16), 1e-6),) * 2, tables, tables, spec, step)
"""


def test_no_number_of_rows_has_a_kernel_compiled_anew() -> None:
    assert num_variants(PROGRAM) == {"normalise": 2, "rotate_and_store": 2, "gate": 1}
