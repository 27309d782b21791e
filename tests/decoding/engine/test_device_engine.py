"""All that a GPU runs, without one: Triton's kernels interpreted, forwards replayed, tokens drawn where logits are.

Whatever method drafts, with a draft model or a head whose rounds are replayed as well, every request is given the
tokens of the engine that runs on the CPU as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from decoding.core.sampling_params import SamplingParams
from decoding.core.stats import DraftCounts
from decoding.drafting.draft_model.draft_model import DraftModel
from decoding.drafting.eagle.head_drafting import HeadDrafting
from decoding.drafting.eagle.head_graphs import HeadGraphs
from decoding.drafting.eagle.head_model import HeadModel
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.target_model import TargetModel
from tests.heads import trained_head
from tests.models import correlated, tiny
from tests.pairs import CONFIG, GREEDY, NOISE, SAMPLED, finish, prompt_of, request_of
from tests.recording import RecordingCapture

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.attention.triton.triton_attention import TritonAttention
from decoding.kernels.gpu.moves import move_rows
from decoding.sampling.device.device_sampler import DeviceSampler

SMALL = replace(CONFIG, max_model_len=64, kv_slots=1024, max_batch_rows=64, max_nodes=8)
STATIC = replace(SMALL, attention="padded")  # while it starts, of whose many forwards each would take long
BUCKETS = (4, 16, 48)  # rows; steps of more run as they come
SHAPE = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
NUM_TOKENS = 6
LAWS = {"greedy": replace(GREEDY, max_tokens=NUM_TOKENS), "sampled": replace(SAMPLED, max_tokens=NUM_TOKENS)}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU"),
]


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "BUCKETS", BUCKETS)


def on_device(engine: Engine) -> Engine:
    """From here on all that it runs is what it would be on a GPU."""
    target, draft = engine.model, engine.draft_model
    for store in (engine.store, *([] if draft is None else [draft.store])):
        store._arrays, store._move_all = [], move_rows
    target._seam.backend = TritonAttention(target.layers, target.dtype, target.device)
    engine._runner = target.runner_over(engine.store, SMALL.max_model_len + SMALL.max_nodes)
    if isinstance(draft, HeadDrafting):
        head = draft.model
        head._backend = TritonAttention(head._layers, head.dtype, head.device)
        draft._runner = head.runner_over(draft.store, SMALL.max_model_len)
        assert isinstance(draft._runner, HeadGraphs)
    elif isinstance(draft, DraftModel):
        model = draft.model
        model.fixed_rows = 1  # as of draft models that are loaded
        model._seam.backend = TritonAttention(model.layers, model.dtype, model.device)
        draft._runner = model.runner_over(draft.store, SMALL.max_model_len)
        assert isinstance(draft._runner, GraphRunner)
    assert isinstance(engine._runner, GraphRunner)
    engine.sampler = DeviceSampler()
    return engine


def replies(
    engine: Engine, sampling: SamplingParams, methods: Sequence[str]
) -> tuple[list[list[int]], list[DraftCounts]]:
    """To as many prompts, all in one batch; what was drafted and accepted."""
    requests = [
        request_of(f"{place} {method}", prompt_of(6 + place, place), sampling, method, max_nodes=SMALL.max_nodes)
        for place, method in enumerate(methods)
    ]
    for request in requests:
        engine.add(request)
    ended, _ = finish(engine)
    counts = [each.counts for each in ended.values()]
    return [request.output.tolist() for request in requests], counts


def assert_same_tokens(plain: Engine, device: Engine, methods: Sequence[str]) -> None:
    drafted = accepted = 0
    for law, sampling in LAWS.items():
        expected, _ = replies(plain, sampling, ["none"] * len(methods))
        found, counts = replies(device, sampling, methods)
        assert found == expected, law
        drafted += sum(each.drafted for each in counts)
        accepted += sum(each.accepted for each in counts)
    assert 0 < accepted < drafted


def test_every_method_gives_the_plain_tokens() -> None:
    """Of a target with sinks, and a window in one of its layers."""
    plain = start_engine(TargetModel.from_model(tiny("gpt_oss", **SHAPE), SMALL), SMALL)
    models = tiny("gpt_oss", **SHAPE), correlated("gpt_oss", NOISE, **SHAPE)
    target, draft = (TargetModel.from_model(each, STATIC, RecordingCapture()) for each in models)
    device = on_device(start_engine(target, STATIC, draft_model=draft))
    assert_same_tokens(plain, device, device.methods)


def test_every_method_of_a_head_gives_the_plain_tokens() -> None:
    plain = start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL)
    target = TargetModel.from_model(tiny("llama"), STATIC, RecordingCapture())
    head = HeadModel(deepcopy(trained_head("llama")), target, RecordingCapture())
    device = on_device(start_engine(target, STATIC, draft_model=head))
    assert_same_tokens(plain, device, ("dynamic", "eagle", "auto"))
