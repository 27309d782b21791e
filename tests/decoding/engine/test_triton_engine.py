"""An engine whose attention is the Triton kernels, on static tensors, gives the tokens of the plain engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from decoding.engine.engine import Engine
from decoding.model.target_model import TargetModel
from tests.models import tiny
from tests.pairs import CONFIG, GREEDY, SAMPLED, finish, prompt_of, request_of

pytest.importorskip("triton", reason="Triton is not installed: its kernels are not tested")

from decoding.attention.triton.triton_attention import TritonAttention

SHORT = 12  # tokens
SMALL = replace(CONFIG, max_model_len=64, kv_slots=1024, max_batch_rows=64, max_nodes=8)


def engine_of(attention: str) -> Engine:
    """Over a model with sinks, and a window in one of its layers."""
    config = replace(SMALL, attention=attention)
    model = tiny("gpt_oss", num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    return Engine(TargetModel.from_model(model, config), config)


def test_plain_and_drafted_requests_in_one_batch_get_the_tokens_of_the_plain_engine() -> None:
    plain, static = engine_of("exact"), engine_of("sdpa")
    target = static.model  # whose many forwards of the start are over: interpreted they would take minutes
    target._seam.backend = TritonAttention(target.layers, torch.float32, target.device)
    outputs = []
    for engine in (plain, static):
        requests = [
            request_of(f"{method} {number}", prompt_of(20, number), replace(sampling, max_tokens=SHORT), method)
            for number, (method, sampling) in enumerate((("none", SAMPLED), ("auto", GREEDY), ("recycle", SAMPLED)))
        ]
        for request in requests:
            engine.add(request)
        _, steps = finish(engine)
        outputs.append([request.output.tolist() for request in requests])
        assert max(stats.rows for stats in steps) > 20, "prompts and trees in one batch"
    assert outputs[0] == outputs[1]
