"""The target model: tree rows equal each path run as a chain, on every architecture, and the rest is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore
from decoding.config import EngineConfig
from decoding.errors import ConfigError, ModelRefused
from decoding.model.checkpoint import fingerprint
from decoding.model.target_model import TargetModel
from tests.models import EOS_TOKEN_ID, VOCAB_SIZE, tiny
from tests.recording import RecordingCapture
from tests.trees import path_to, random_parents

ARCHITECTURES = [
    "llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt_neox", "phi3", "mixtral", "qwen3_moe",
    "qwen2_moe", "gpt_oss",
]  # fmt: skip
KINDS = [  # of whose bits: bfloat16 differs from float32 by kernels alone, which three models see
    *((each, "float32") for each in ARCHITECTURES),
    *(
        pytest.param(each, "bfloat16", marks=() if each in ("llama", "gemma3_text", "mixtral") else pytest.mark.slow)
        for each in ARCHITECTURES
    ),
]
ALSO = ["llama4_text", "deepseek_v3"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
Tokens = NDArray[np.int32]


@cache
def target(model_type: str, dtype: str = "float32", attention: str = "auto") -> TargetModel:
    config = EngineConfig(attention=attention)  # type: ignore[arg-type]
    return TargetModel.from_model(tiny(model_type).to(DTYPES[dtype]), config)


def random_tokens(count: int, seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, count, dtype=np.int32)


def room_for(model: TargetModel, count: int = 1) -> tuple[KvStore, list[KvRows]]:
    """A store for so many sequences of 128 tokens, and their rows."""
    cache = KvCache(model.new_store(count * num_blocks_for(128)))
    return cache.store, [cache.new_rows(128) for _ in range(count)]


def prefill(model: TargetModel, store: KvStore, rows: KvRows, prompt: Tokens, chunk: int = 16) -> None:
    for start in range(0, len(prompt), chunk):
        part = prompt[start : start + chunk]
        assert model.forward(pack([Segment(rows, part, None, "none")], store)).shape == (0, VOCAB_SIZE)
        store.commit(rows, np.arange(len(part), dtype=np.int32))


def decode_path(model: TargetModel, prompt: Tokens, tokens: Sequence[int]) -> torch.Tensor:
    """[V] after prompt and tokens, the latter one by one."""
    store, [rows] = room_for(model)
    prefill(model, store, rows, prompt)
    for token in tokens:
        logits_RV = model.forward(pack([Segment(rows, np.array([token], np.int32))], store))
        store.commit(rows, np.zeros(1, np.int32))
    return logits_RV[0]


def eager_logits(model_type: str, sequence: Tokens) -> torch.Tensor:
    """[V]: transformers' own forward over the whole sequence, of a model that Gander never touched."""
    with torch.inference_mode():
        return _untouched(model_type)(input_ids=torch.from_numpy(sequence).long()[None]).logits[0, -1]


@cache
def _untouched(model_type: str) -> torch.nn.Module:
    model = tiny(model_type)
    model.set_attn_implementation("eager")
    return model


def run_tree_scene(model: TargetModel) -> list[tuple[Tokens, Sequence[int], torch.Tensor]]:
    """Three requests in one step, then a second tree on a committed path: (prompt, path's tokens, logits) per node."""
    prompts = [random_tokens(length, seed) for seed, length in enumerate((5, 19, 27))]
    trees = [(random_tokens(size, 10 + size), random_parents(size, np.random.default_rng(size))) for size in (7, 16, 1)]
    store, rows = room_for(model, len(prompts))
    for each, prompt in zip(rows, prompts, strict=True):
        prefill(model, store, each, prompt)
    segments = [Segment(each, *tree) for each, tree in zip(rows, trees, strict=True)]
    batch = pack(segments, store)
    logits_RV = model.forward(batch)
    nodes = []
    for request, (tokens, parents) in enumerate(trees):
        for node in range(len(tokens)):
            path = tokens[path_to(node, parents)].tolist()
            nodes.append((prompts[request], path, logits_RV[batch.logit_offsets[request] + node]))
    tokens, parents = trees[1]
    accepted = path_to(len(tokens) - 1, parents)
    assert accepted[-1] != len(accepted) - 1, "the accepted path must not be contiguous"
    store.commit(rows[1], accepted)
    committed = tokens[accepted].tolist()
    second, second_parents = random_tokens(6, 77), random_parents(6, np.random.default_rng(6))
    logits_RV = model.forward(pack([Segment(rows[1], second, second_parents)], store))
    for node in range(len(second)):
        path = second[path_to(node, second_parents)].tolist()
        nodes.append((prompts[1], committed + path, logits_RV[node]))
    return nodes


@pytest.mark.parametrize("attention", ["exact", "sdpa"])
@pytest.mark.parametrize("model_type", ARCHITECTURES + ALSO)
def test_tree_rows_equal_transformers_eager_forward_over_their_paths(model_type: str, attention: str) -> None:
    for prompt, path, logits_V in run_tree_scene(target(model_type, attention=attention)):
        expected_V = eager_logits(model_type, np.concatenate([prompt, np.array(path, np.int32)]))
        torch.testing.assert_close(logits_V, expected_V, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(("model_type", "dtype"), KINDS)
def test_a_tree_row_has_the_bits_of_its_path_decoded_one_by_one(model_type: str, dtype: str) -> None:
    model = target(model_type, dtype)
    assert model.is_exact
    for prompt, path, logits_V in run_tree_scene(model)[::3]:
        assert torch.equal(logits_V, decode_path(model, prompt, path))


@pytest.mark.parametrize(("model_type", "dtype"), KINDS)
def test_chunks_change_no_bit_of_a_prompt(model_type: str, dtype: str) -> None:
    model, prompt = target(model_type, dtype), random_tokens(71, 3)
    logits = []
    for chunk in (71, 64, 17, 1):
        store, [rows] = room_for(model)
        parts = []
        for start in range(0, len(prompt), chunk):
            parts.append(model.forward(pack([Segment(rows, prompt[start : start + chunk])], store)))
            store.commit(rows, np.arange(len(parts[-1]), dtype=np.int32))
        logits.append(torch.cat(parts))
    assert all(torch.equal(logits[0], other) for other in logits[1:])


def test_two_models_alternate_in_one_process() -> None:
    first, second = target("llama"), TargetModel.from_model(tiny("qwen3", seed=1), EngineConfig())
    prompt, path = random_tokens(12, 0), random_tokens(3, 1).tolist()
    expected = decode_path(first, prompt, path), decode_path(second, prompt, path)
    rooms = [(model, *room_for(model)) for model in (first, second)]
    for token in [*prompt.tolist(), *path]:
        logits = []
        for model, store, [rows] in rooms:
            logits.append(model.forward(pack([Segment(rows, np.array([token], np.int32))], store))[0])
            store.commit(rows, np.zeros(1, np.int32))
    assert torch.equal(logits[0], expected[0])
    assert torch.equal(logits[1], expected[1])


def test_greedy_tokens_are_those_of_generate() -> None:
    model, prompt = target("llama"), random_tokens(14, 4)
    store, [rows] = room_for(model)
    prefill(model, store, rows, prompt[:-1])
    tokens = [int(prompt[-1])]
    for _ in range(30):
        logits_RV = model.forward(pack([Segment(rows, np.array(tokens[-1:], np.int32))], store))
        store.commit(rows, np.zeros(1, np.int32))
        tokens.append(int(logits_RV[0].argmax()))
    reference = _untouched("llama").generate(  # type: ignore[operator]
        torch.from_numpy(prompt).long()[None], max_new_tokens=30, do_sample=False, eos_token_id=None
    )
    assert tokens[1:] == reference[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("bloom", "does not run through the attention interface"),
        ("falcon", "does not run through the attention interface"),
        ("gptj", "does not run through the attention interface"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(model_type: str, reason: str) -> None:
    with pytest.raises(ModelRefused, match=reason):
        TargetModel.from_model(tiny(model_type), EngineConfig())


def test_a_model_that_ignores_positions_is_refused() -> None:
    model = tiny("llama")

    def ignore(_module: object, arguments: tuple[object, ...], named: dict[str, torch.Tensor]) -> object:
        count = named["input_ids"].shape[1]
        return arguments, named | {"position_ids": torch.arange(count)[None]}

    model.model.register_forward_pre_hook(ignore, with_kwargs=True)
    with pytest.raises(ModelRefused, match="may ignore explicit positions"):
        TargetModel.from_model(model, EngineConfig())


def test_lengths_end_tokens_and_sizes_come_from_the_checkpoint() -> None:
    model = target("llama")
    assert model.max_model_len == 512
    assert model.eos_token_ids == frozenset({EOS_TOKEN_ID})
    assert model.vocab_size == VOCAB_SIZE
    assert model.bytes_per_slot == 3 * 2 * 2 * 16 * 4
    assert model.num_parameters > 0
    with pytest.raises(ConfigError, match="max_model_len 513 is more than the 512"):
        TargetModel.from_model(tiny("llama"), EngineConfig(max_model_len=513))


def test_fingerprints_tell_weights_dtypes_and_attention_apart() -> None:
    same = TargetModel.from_model(tiny("llama"), EngineConfig())
    other = TargetModel.from_model(tiny("llama", seed=1), EngineConfig())
    models = [target("llama"), other, target("llama", "bfloat16"), target("llama", attention="sdpa")]
    assert same.fingerprint == models[0].fingerprint
    assert len({model.fingerprint for model in models}) == len(models)


def test_fingerprints_tell_gpus_apart_and_how_forwards_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"cuda:0": "H100", "cuda:1": "A100", "cuda:2": "H100"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: names[str(device)])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    found = [fingerprint(torch.device(name), "model") for name in names]
    assert found[0] == found[2] != found[1]
    padded = EngineConfig(attention="padded", threads=1)
    captures = None, RecordingCapture()
    models = [TargetModel.from_model(tiny("llama"), padded, capture) for capture in captures]
    assert models[0].fingerprint != models[1].fingerprint
    assert models[0].identity == models[1].identity


def test_a_folder_loads_as_the_same_model(tmp_path: Path) -> None:
    tiny("llama").save_pretrained(tmp_path)
    news: list[tuple[str, float]] = []
    config = EngineConfig(model=str(tmp_path), device="cpu", max_model_len=256)
    model = TargetModel.load(config, lambda sentence, fraction: news.append((sentence, fraction)))
    assert (model.attention, model.dtype, model.max_model_len) == ("exact", torch.float32, 256)
    assert news
    prompt = random_tokens(9, 0)
    assert torch.equal(decode_path(model, prompt, [5]), decode_path(target("llama"), prompt, [5]))
    with pytest.raises(ModelRefused, match="cannot be loaded"):
        TargetModel.load(replace(config, model=str(tmp_path / "nothing")), lambda _sentence, _fraction: None)


def test_long_rope_does_not_look_at_the_batch() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
    rope["original_max_position_embeddings"] = 32
    model = TargetModel.from_model(
        tiny("phi3", rope_parameters=rope, original_max_position_embeddings=32), EngineConfig(max_model_len=512)
    )
    prompt = random_tokens(10, 0)
    alone = decode_path(model, prompt, [7])
    store, [short, long] = room_for(model, 2)
    prefill(model, store, short, prompt)
    prefill(model, store, long, random_tokens(80, 1))
    segments = [Segment(short, np.array([7], np.int32)), Segment(long, np.array([9], np.int32))]
    assert torch.equal(model.forward(pack(segments, store))[0], alone)
