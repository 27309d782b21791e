"""On a GPU: graphs that are captured and replayed there, fused layers, experts, events, and the tokens of the CPU.

The same tests run on a CPU as far as they can, with a stand-in for graphs and Triton's kernels interpreted, so that
what is wrong with a test itself is seen before a GPU is at hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from decoding.attention.padded import PaddedAttention
from decoding.cache.kv_cache import KvCache
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_graphs import HeadGraphs
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.start import start_engine
from decoding.model.device.capture import Capture, CudaCapture
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.device.runner import CudaStopwatch
from decoding.model.experts.separate import CHILD, own_forward
from decoding.model.replacing import replacer
from decoding.model.self_test import long_chain
from decoding.model.target_model import TargetModel
from decoding.sampling.device.device_sampler import DeviceSampler
from tests.decoding.engine.test_graphs import METHODS, SMALL, SMALL_LEN, STATIC, asked
from tests.decoding.model.device.test_graph_runner import BUCKETS, CONFIG, MOST_KEYS, differing
from tests.heads import new_head
from tests.models import tiny
from tests.pairs import GREEDY, SAMPLED, GivenTimings, finish, prompt_of, reply, request_of
from tests.recording import RecordingCapture
from tests.row_exact import use_row_exact_dots

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
HAS_GPU = torch.cuda.is_available()
ON_GPU = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("default"),  # of a compiler, of which an error would have the model run as it is
    pytest.mark.skipif(not HAS_GPU, reason="there is no GPU that torch can use here"),
]
ON_CPU = pytest.mark.skipif(HAS_GPU, reason="kernels are interpreted where there is no GPU")
DEVICES = [pytest.param(CPU, id="cpu", marks=ON_CPU), pytest.param(CUDA, id="cuda", marks=ON_GPU)]
COMPILED = [pytest.param(CUDA, True, id="cuda-compiled", marks=ON_GPU)]
PLAIN = [
    pytest.param(CPU, False, id="cpu", marks=ON_CPU),
    pytest.param(CUDA, False, id="cuda", marks=ON_GPU),
]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's arithmetic is numpy's, whose products round by place."""
    if not HAS_GPU:
        pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")
        use_row_exact_dots(monkeypatch)


def capture_for(device: torch.device) -> Capture:
    return CudaCapture(device) if device == CUDA else RecordingCapture()


def model_on(
    device: torch.device, model_type: str = "llama", dtype: torch.dtype = torch.float32, **options: Any
) -> TargetModel:
    model = tiny(model_type).to(device, dtype)
    return TargetModel.from_model(model, replace(CONFIG, **options), capture_for(device))


def half_on(device: torch.device) -> torch.dtype:
    """What the interpreter computes in, too."""
    return torch.bfloat16 if device == CUDA else torch.float16


@pytest.mark.parametrize(("device", "compile"), [*PLAIN, *COMPILED])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_a_graph_gives_what_its_operations_give(model_type: str, device: torch.device, compile: bool) -> None:
    model = model_on(device, model_type, compile=compile)
    assert model._static.is_compiled == compile
    cache = KvCache(model.new_store(40))
    runner = GraphRunner(model, PaddedAttention(), cache.store, MOST_KEYS, BUCKETS[1:])
    runner.capture(capture_for(device), lambda _sentence, _fraction: None)
    assert differing(model, runner, cache) == []


@pytest.mark.parametrize("device", DEVICES)
def test_an_engine_on_a_gpu_gives_the_tokens_of_the_cpu(device: torch.device) -> None:
    kept = GivenTimings(SMALL_LEN)
    plain = start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL, kept=kept)
    target = model_on(device, max_model_len=SMALL.max_model_len)
    head = HeadModel(new_head(target.shared.embeddings).to(target.device), target, capture_for(device))
    captured = start_engine(target, STATIC, draft_model=head, kept=kept if device == CPU else None)
    assert isinstance(captured._runner, GraphRunner)
    assert isinstance(captured.draft_model, HeadDrafting)
    assert isinstance(captured.draft_model._runner, HeadGraphs)
    for method in [each for each in METHODS if each in captured.methods]:
        for sampling in (GREEDY, SAMPLED):
            prompt = prompt_of(40, len(method))
            expected = reply(plain, request_of("plain", prompt, sampling))
            assert reply(captured, asked(method, prompt, sampling, method)) == expected


@pytest.mark.parametrize("device", DEVICES)
def test_steps_that_are_launched_ahead_give_the_tokens_of_the_cpu(device: torch.device) -> None:
    kept = GivenTimings(SMALL_LEN)
    plain = start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL, kept=kept)
    ahead = start_engine(
        model_on(device, max_model_len=SMALL.max_model_len), STATIC, kept=kept if device == CPU else None
    )
    ahead.sampler = DeviceSampler()
    for law in (GREEDY, SAMPLED):
        laws = [replace(law, max_tokens=12 - 3 * place, seed=place) for place in range(3)]
        prompts = [prompt_of(10 + place, place) for place in range(3)]
        expected = [reply(plain, request_of("plain", *each)) for each in zip(prompts, laws, strict=True)]
        requests = [request_of(f"{place}", prompts[place], laws[place]) for place in range(3)]
        for request in requests:
            ahead.add(request)
        ahead.step()
        assert ahead._launched is not None
        finish(ahead)
        assert [request.output.tolist() for request in requests] == expected


@pytest.mark.parametrize(("device", "compile"), [*PLAIN, *COMPILED])
def test_an_engine_as_it_is_served_answers_every_method(device: torch.device, compile: bool) -> None:
    """Triton's attention in bfloat16, captured, tokens drawn on the device: what a GPU runs unless told otherwise. On a
    CPU attention that can be captured, without Triton's."""
    is_on_gpu = device == CUDA
    config = replace(SMALL, attention="auto" if is_on_gpu else "padded", compile=compile)
    own = tiny("llama").to(device, torch.bfloat16 if is_on_gpu else torch.float32)
    model = TargetModel.from_model(own, config, capture_for(device))
    engine = start_engine(model, config, kept=None if is_on_gpu else GivenTimings(SMALL_LEN))
    assert isinstance(engine._runner, GraphRunner)
    if is_on_gpu:
        assert model.attention == "triton"
        assert model._static.is_compiled == compile
        assert (type(own.model.layers[0]).__name__ == "DeviceLayer") == (not compile)
        assert isinstance(engine.sampler, DeviceSampler)
    drafted = 0
    for method in engine.methods:
        for sampling in (GREEDY, SAMPLED):
            request = asked(method, prompt_of(40, 1), sampling, method)
            engine.add(request)
            ended, _ = finish(engine)
            assert request.num_output == sampling.max_tokens
            drafted += ended[method].counts.drafted
    assert drafted > 0


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
def test_experts_give_what_transformers_own_do_and_a_row_the_same_bits(model_type: str, device: torch.device) -> None:
    from decoding.model.experts.device_experts import GroupedExperts, whole_rule

    dtype = half_on(device)
    model = tiny(model_type).to(device, dtype)
    experts = next(each for each in model.modules() if type(each).__name__.endswith("Experts"))
    rows, shares = torch.randn(40, 64, device=device).to(dtype), torch.rand(40, 2, device=device).to(dtype)
    chosen = torch.rand(40, 4, device=device).argsort(1)[:, :2].contiguous()
    with torch.inference_mode():
        expected = own_forward(experts, rows, chosen, shares)
        replacer.replace(model, [whole_rule()])
        assert isinstance(experts.get_submodule(CHILD), GroupedExperts)
        found = experts(rows, chosen, shares)
        for count in (1, 2, 17):
            assert torch.equal(experts(rows[:count], chosen[:count], shares[:count]), found[:count])
    assert (found - expected).abs().max() <= 3e-2 * expected.abs().max()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3"])
def test_a_fused_layer_computes_what_the_layer_does_and_a_row_has_the_same_bits(
    model_type: str, device: torch.device
) -> None:
    from decoding.model.layers.device_layer import DeviceLayer, added, gated, normalised
    from tests.decoding.model.test_device_layer import SHAPE, fused

    dtype, num_rows = half_on(device), 64 if device == CUDA else 18  # each of which is interpreted
    if device == CUDA:
        model = model_on(device, model_type, attention="triton", dtype=dtype)
    else:
        model, _ = fused(tiny(model_type, **SHAPE).to(dtype))
    layers = [each for each in model._model.modules() if isinstance(each, DeviceLayer)]
    assert len(layers) == len(model.layers)
    batch = long_chain(model, num_rows, num_rows)
    found = model.forward(batch)
    rows, norm = torch.randn(num_rows, 64, device=device).to(dtype), layers[0]._parts.mlp_norm
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


@pytest.mark.cuda
@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU that torch can use here")
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
