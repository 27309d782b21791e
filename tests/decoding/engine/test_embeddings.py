"""Embeddings are the model's own hidden states, pooled; their bits depend on the prompt alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.block_pool import BLOCK_LEN
from decoding.core.events import Finished, Pooled, Tokens
from decoding.core.pooling import Pooling
from decoding.core.request import FinishReason, Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.errors import RequestRejected
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import CONFIG, GIVEN, target_of

POOLINGS: tuple[Pooling, ...] = ("mean", "last")
FORMS = ("llama", "gpt2", "gpt_neox", "gemma2", "qwen3_next")  # the norm's name and the layers' kinds differ
ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
PLAIN = SpeculationParams(method="none")


def new_engine(form: str = "llama", **options: Any) -> Engine:
    return start_engine(target_of(form), replace(CONFIG, **options), kept=GIVEN)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return new_engine()


def prompt_of(length: int, seed: int) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).astype(np.int32)


def asked(name: str, prompt: NDArray[np.int32], pooling: Pooling) -> Request:
    return Request(id=name, prompt=prompt, sampling=ONE_TOKEN, speculation=PLAIN, pooling=pooling)


def run(engine: Engine, *requests: Request) -> tuple[dict[str, bytes], dict[str, RequestStats]]:
    """The vectors, and what each request came to."""
    vectors: dict[str, bytes] = {}
    ended: dict[str, RequestStats] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        result = engine.step()
        for pooled in result.of(Pooled):
            assert pooled.request_id not in vectors
            vectors[pooled.request_id] = pooled.vector
        wants = {request.id for request in requests if request.pooling is not None}
        assert not wants & {tokens.request_id for tokens in result.of(Tokens)}
        for finished in result.of(Finished):
            assert finished.reason is FinishReason.LENGTH
            ended[finished.request_id] = finished.stats
        engine.pool.check_integrity()
    assert engine.pool.num_held == 0
    assert ended.keys() == {request.id for request in requests}
    return vectors, ended


def vector_of(engine: Engine, prompt: NDArray[np.int32], pooling: Pooling) -> bytes:
    return run(engine, asked("one", prompt, pooling))[0]["one"]


@pytest.mark.parametrize("form", FORMS)
def test_it_is_what_transformers_says_of_the_prompt(form: str) -> None:
    prompt = prompt_of(70, seed=1)
    with torch.inference_mode():
        hidden = tiny(form).get_decoder()(input_ids=torch.from_numpy(prompt).long()[None]).last_hidden_state[0]
    expected = {"mean": hidden.mean(0), "last": hidden[-1]}
    engine = new_engine(form)
    assert engine.embedding_len == hidden.shape[1]
    for pooling in POOLINGS:
        vector = np.frombuffer(vector_of(engine, prompt, pooling), "<f4")
        np.testing.assert_allclose(vector, expected[pooling].numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("form", ["llama", "gpt2"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_its_bits_depend_on_neither_batch_nor_chunks_nor_cache(form: str, pooling: Pooling) -> None:
    engine = new_engine(form)
    if not engine.model.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    prompts = {f"{length}": prompt_of(length, seed=length) for length in (1, 2, 15, 16, 17, 90, 150)}
    alone = {name: vector_of(engine, prompt, pooling) for name, prompt in prompts.items()}
    assert len(set(alone.values())) == len(prompts)
    again = {name: vector_of(engine, prompt, pooling) for name, prompt in prompts.items()}
    reply = SamplingParams(max_tokens=20, temperature=0.0, ignore_eos=True)
    beside = Request(id="beside", prompt=prompt_of(40, 9), sampling=reply, speculation=SpeculationParams(max_nodes=8))
    packed, _ = run(engine, beside, *(asked(name, prompt, pooling) for name, prompt in prompts.items()))
    small = new_engine(form, max_batch_rows=32, prefix_cache=False)
    chunked, stats = run(small, *(asked(name, prompt, pooling) for name, prompt in prompts.items()))
    assert stats["150"].prefill_chunks > 3
    assert alone == again == packed == chunked


def test_a_mean_is_of_tokens_that_are_run_and_the_last_token_may_find_the_others(engine: Engine) -> None:
    prompt = prompt_of(5 * BLOCK_LEN, seed=3)
    run(engine, asked("first", prompt, "mean"))
    _, stats = run(engine, asked("mean", prompt, "mean"), asked("last", prompt, "last"))
    assert stats["mean"].cached_tokens == 0
    assert stats["last"].cached_tokens == 4 * BLOCK_LEN


def test_who_gives_up_its_blocks_is_pooled_anew(engine: Engine) -> None:
    """Two that want more blocks than there are, of which the younger has to wait."""
    small = new_engine(kv_slots=20 * BLOCK_LEN, max_model_len=None, max_batch_rows=32, prefix_cache=False)
    reply = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    grows = Request(id="grows", prompt=prompt_of(40, 5), sampling=reply, speculation=PLAIN)
    prompts = {f"{number}": prompt_of(120, seed=number) for number in range(3)}
    vectors, stats = run(small, grows, *(asked(name, prompt, "mean") for name, prompt in prompts.items()))
    assert vectors == {name: vector_of(engine, prompt, "mean") for name, prompt in prompts.items()}
    assert set(stats) == {"grows", *prompts}


def test_an_embedding_counts_no_reply_token(engine: Engine) -> None:
    engine.add(asked("one", prompt_of(9, 1), "last"))
    result = engine.step()
    assert result.stats is not None
    assert result.stats.counts_by_method == {}
    assert result.stats.prefill_rows == 8


def test_a_model_whose_norm_is_not_found_gives_none() -> None:
    model = TargetModel.from_model(tiny("llama"), CONFIG)
    norms = model._model.get_decoder()
    norm, norms.norm = norms.norm, None
    assert model.shared.last_norm is None
    norms.norm = norm
    engine = new_engine()
    engine._hidden = None
    assert engine.embedding_len == 0
    with pytest.raises(RequestRejected, match="no embeddings") as caught:
        engine.add(asked("one", prompt_of(9, 1), "last"))
    assert caught.value.param == "model"
