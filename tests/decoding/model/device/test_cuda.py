"""What only a GPU can show: graphs that are captured and replayed there, events, and the tokens of the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.cache.kv_cache import KvCache
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_graphs import HeadGraphs
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.start import start_engine
from decoding.model.device.capture import CudaCapture
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.device.runner import CudaStopwatch
from decoding.model.experts.separate import CHILD, own_forward
from decoding.model.replacing import replacer
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
from decoding.sampling.device.device_sampler import DeviceSampler
from tests.decoding.engine.test_graphs import METHODS, SMALL, STATIC
from tests.decoding.model.device.test_graph_runner import BUCKETS, CONFIG, MOST_KEYS, differing
from tests.heads import new_head
from tests.models import tiny
from tests.pairs import GREEDY, SAMPLED, finish, prompt_of, reply, request_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("default"),  # of a compiler, of which an error would have the model run as it is
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that torch can use here"),
]


def model_on_gpu(model_type: str = "llama", dtype: torch.dtype = torch.float32, **options: object) -> TargetModel:
    model, device = tiny(model_type).to("cuda", dtype), torch.device("cuda")
    return TargetModel.from_model(model, replace(CONFIG, **options), CudaCapture(device))  # type: ignore[arg-type]


@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_graph_gives_what_its_operations_give(model_type: str, compile: bool) -> None:
    model = model_on_gpu(model_type, compile=compile)
    assert model._static.is_compiled == compile
    cache = KvCache(model.new_store(40))
    runner = GraphRunner(model, PaddedAttention(), cache.store, MOST_KEYS, BUCKETS[1:])
    runner.capture(CudaCapture(model.device), lambda _sentence, _fraction: None)
    assert differing(model, runner, cache) == []


def test_an_engine_on_a_gpu_gives_the_tokens_of_the_cpu() -> None:
    plain = start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL)
    target = model_on_gpu(max_model_len=SMALL.max_model_len)
    head = HeadModel(new_head(target.shared.embeddings).to(target.device), target, CudaCapture(target.device))
    captured = start_engine(target, STATIC, draft_model=head)
    assert isinstance(captured._runner, GraphRunner)
    assert isinstance(captured.draft_model, HeadDrafting)
    assert isinstance(captured.draft_model._runner, HeadGraphs)
    for method in set(METHODS) & set(captured.methods):
        for sampling in (GREEDY, SAMPLED):
            prompt = prompt_of(40, len(method))
            expected = reply(plain, request_of("plain", prompt, sampling))
            assert reply(captured, request_of(method, prompt, sampling, method)) == expected


@pytest.mark.parametrize("compile", [False, True])
def test_an_engine_as_it_is_served_answers_every_method(compile: bool) -> None:
    """Triton's attention in bfloat16, captured, tokens drawn on the device: what a GPU runs unless told otherwise."""
    config = replace(SMALL, attention="auto", compile=compile)
    own = tiny("llama").to("cuda", torch.bfloat16)
    model = TargetModel.from_model(own, config, CudaCapture(own.device))
    engine = start_engine(model, config)
    assert model.attention == "triton"
    assert model._static.is_compiled == compile
    assert (type(own.model.layers[0]).__name__ == "DeviceLayer") == (not compile)
    assert isinstance(engine._runner, GraphRunner)
    assert isinstance(engine.sampler, DeviceSampler)
    drafted = 0
    for method in engine.methods:
        for sampling in (GREEDY, SAMPLED):
            request = request_of(method, prompt_of(40, 1), sampling, method)
            engine.add(request)
            ended, _ = finish(engine)
            assert request.num_output == sampling.max_tokens
            drafted += ended[method].counts.drafted
    assert drafted > 0


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_experts_give_what_transformers_own_do_and_a_row_the_same_bits(model_type: str) -> None:
    from decoding.model.experts.device_experts import GroupedExperts, whole_rule

    model = tiny(model_type).to("cuda", torch.bfloat16)
    experts = next(each for each in model.modules() if type(each).__name__.endswith("Experts"))
    rows, shares = torch.randn(40, 64, device="cuda").bfloat16(), torch.rand(40, 2, device="cuda").bfloat16()
    chosen = torch.rand(40, 4, device="cuda").argsort(1)[:, :2].contiguous()
    with torch.inference_mode():
        expected = own_forward(experts, rows, chosen, shares)
        replacer.replace(model, [whole_rule()])
        assert isinstance(experts.get_submodule(CHILD), GroupedExperts)
        found = experts(rows, chosen, shares)
        for count in (1, 2, 17):
            assert torch.equal(experts(rows[:count], chosen[:count], shares[:count]), found[:count])
    assert (found - expected).abs().max() <= 3e-2 * expected.abs().max()


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_a_fused_layer_computes_what_the_layer_does_and_a_row_has_the_same_bits(model_type: str) -> None:
    from decoding.model.layers.device_layer import DeviceLayer, added, gated, normalised

    model = model_on_gpu(model_type, attention="triton", dtype=torch.bfloat16)
    layers = [each for each in model._model.modules() if isinstance(each, DeviceLayer)]
    assert len(layers) == len(model.layers)
    batch = long_chain(model)
    found = model.forward(batch)
    rows, norm = torch.randn(64, 64, device="cuda").bfloat16(), layers[0]._parts.mlp_norm
    for count in (1, 17):
        for whole, part in (
            (normalised(rows, norm), normalised(rows[:count], norm)),
            (added(rows, rows, norm)[1], added(rows[:count], rows[:count], norm)[1]),
            (gated(rows, rows), gated(rows[:count], rows[:count])),
        ):
            assert torch.equal(part, whole[:count])
    for layer in layers:
        layer.forward = layer.layer.forward  # type: ignore[method-assign]
    expected = model.forward(batch)
    assert (found - expected).abs().max() <= 3e-2 * expected.abs().max()


def test_a_stopwatch_knows_what_the_device_took() -> None:
    matrix = torch.randn(4096, 4096, device="cuda")
    stopwatch = CudaStopwatch()
    for _ in range(20):
        matrix = matrix @ matrix
    stopwatch.stop()
    whole = stopwatch.seconds()
    empty = CudaStopwatch()
    empty.stop()
    assert whole > 10 * empty.seconds()
