"""Qwen3.5's mixture of experts with weights of four bits: states, experts and packed weights in one model, as
Qwen3.5-35B-A3B is downloaded. Drafted replies are the plain ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from decoding.core.request import Request
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.device.runner import silent
from decoding.model.target_model import TargetModel
from tests.gguf_files import VOCAB_SIZE, write_gguf
from tests.models import tiny
from tests.pairs import CONFIG, GIVEN, GREEDY, SAMPLED, finish, prompt_of, reply, request_of

METHODS = ("spine", "stand", "auto", "lookup", "dynamic")
LAWS = {"greedy": replace(GREEDY, max_tokens=20), "sampled": replace(SAMPLED, temperature=0.7, max_tokens=20)}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    model = tiny("qwen3_5_moe_text", vocab_size=VOCAB_SIZE)
    path = write_gguf(tmp_path_factory.mktemp("model") / "model.gguf", model, "Q4_1")
    target = TargetModel.load(replace(CONFIG, model=str(path), device="cpu", dtype="float32"), silent)
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    draft = tiny("llama", vocab_size=VOCAB_SIZE, num_hidden_layers=1)
    with torch.no_grad():  # now and then it says what the model says
        draft.get_input_embeddings().weight.copy_(model.get_input_embeddings().weight)
        draft.get_output_embeddings().weight.copy_(model.get_output_embeddings().weight)
    return start_engine(target, CONFIG, draft_model=TargetModel.from_model(draft, CONFIG), kept=GIVEN)


def run(engine: Engine, *requests: Request) -> list[RequestStats]:
    for request in requests:
        engine.add(request)
    ended, _ = finish(engine)
    return [ended[request.id] for request in requests]


def test_it_has_states_experts_and_packed_weights(engine: Engine) -> None:
    model = engine.model
    assert isinstance(model, TargetModel)
    assert model.state_bytes > 0
    assert model.mixtures is not None
    assert model.weights == "Q4_1"
    assert model.num_bytes < 2 * model.num_parameters


@pytest.mark.parametrize("law", LAWS)
def test_drafted_replies_are_the_plain_ones(engine: Engine, law: str) -> None:
    """One by one over a prompt that is found from the second on, then all together."""
    engine.start_afresh(0.0)
    prompt = np.tile(prompt_of(20, 0), 2)
    plain = reply(engine, request_of("plain", prompt, LAWS[law]))
    engine.start_afresh(0.0)
    alone = [request_of(method, prompt, LAWS[law], method, max_nodes=8) for method in METHODS]
    ended = [stats for request in alone for stats in run(engine, request)]
    assert [stats.cached_tokens for stats in ended] == [0, 32, 32, 32, 32]
    together = [request_of(f"{method} too", prompt, LAWS[law], method, max_nodes=8) for method in METHODS]
    ended += run(engine, *together)
    assert [request.output.tolist() for request in (*alone, *together)] == [plain] * 10
    num_accepted = sum(stats.counts.accepted for stats in ended)
    assert sum(stats.counts.drafted for stats in ended) > num_accepted > 0
