"""Every family whose layers carry a state: unmodified modelling code gives a tree's rows the logits of their paths."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.core.tree import IntArray
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny

# Short convolutions, gated delta rule (with experts, without, and with other projections), Kimi's, Mamba-2 (beside
# attention, with experts, in one layer with attention, alone between others, and nothing else), Mamba-1.
FAMILIES = (
    "lfm2",
    "qwen3_next",
    "qwen3_5_text",
    "olmo_hybrid",
    "kimi_linear",
    "bamba",
    "granitemoehybrid",
    "falcon_h1",
    "nemotron_h",
    "mamba2",
    "jamba",
    "mamba",
)
FORGETFUL = ("nemotron_h",)  # whose forward with its own cache differs from the one without by thousandths
TOLERANCE = 1e-4  # of the largest logit
TREE: IntArray = np.array([-1, 0, 0, 1, 2, 2, 5], np.int32)
PATH = [0, 2, 5, 6]
CHUNKS = (1, 2, 3, 5, 8, 13, 21, 34, 64)


@pytest.fixture(scope="module", params=FAMILIES)
def target(request: pytest.FixtureRequest) -> TargetModel:
    return TargetModel.from_model(tiny(request.param), EngineConfig(threads=1))


def cached_logits(model_type: str, tokens: list[int]) -> torch.Tensor:
    """[n, V]: by transformers' own forward with its own cache, one token at a time after the first five."""
    model, cache, rows = tiny(model_type), None, []
    num_first = len(tokens) if model_type in FORGETFUL else 5
    with torch.inference_mode():
        for start, end in [(0, num_first), *((place, place + 1) for place in range(num_first, len(tokens)))]:
            ids, positions = torch.tensor([tokens[start:end]]), torch.arange(start, end)[None]
            name = "cache_params" if model_type in ("mamba", "mamba2") else "past_key_values"
            own = {} if name == "cache_params" else {"position_ids": positions}
            out = model(input_ids=ids, use_cache=True, **own, **{name: cache})
            cache = out[name]
            rows.append(out.logits[0].float())
    return torch.cat(rows)


def test_a_tree_after_chunks_has_the_logits_of_transformers_own_cache(target: TargetModel) -> None:
    tokens = np.random.default_rng(0).integers(3, VOCAB_SIZE, 40).astype(np.int32)
    prompt, tree = tokens[:13], tokens[20 : 20 + len(TREE)]
    store = target.new_store(num_blocks_for(64))
    rows = KvCache(store).new_rows(64)
    for start in range(0, len(prompt), 5):
        chunk = prompt[start : start + 5]
        target.forward(pack([Segment(rows, chunk, None, "none")], store))
        store.commit(rows, np.arange(len(chunk), dtype=np.int32))
    before = target.forward(pack([Segment(rows, tree, TREE)], store))
    assert torch.equal(before, target.forward(pack([Segment(rows, tree, TREE)], store))), "a forward changes no state"
    store.commit(rows, np.array(PATH, np.int32))
    after = target.forward(pack([Segment(rows, tokens[30:31])], store))
    model_type = target._model.config.model_type
    expected = cached_logits(model_type, [*prompt.tolist(), *tree[PATH].tolist(), int(tokens[30])])[len(prompt) :]
    largest = expected.abs().max().item()
    assert (torch.cat([before[PATH], after]) - expected).abs().max().item() <= TOLERANCE * largest


@cache
def is_row_invariant() -> bool:
    """Whether this processor gives rows the same bits in any company, where no layer carries a state."""
    return TargetModel.from_model(tiny("llama"), EngineConfig(threads=1)).is_exact


def test_logits_are_exact_in_trees_batches_and_chunks(target: TargetModel) -> None:
    assert target.state_bytes > 0
    assert target.is_exact or not is_row_invariant()


def test_a_prompt_in_chunks_of_any_size_leaves_the_same_states(target: TargetModel) -> None:
    if not target.is_exact:
        pytest.skip("this processor does not give row-invariant arithmetic")
    tokens = np.random.default_rng(1).integers(3, VOCAB_SIZE, sum(CHUNKS)).astype(np.int32)
    store = target.new_store(2 * num_blocks_for(len(tokens)))
    cache = KvCache(store)
    carried, logits = [], []
    for sizes in ((len(tokens),), CHUNKS):
        rows, start = cache.new_rows(len(tokens)), 0
        for size in sizes:
            found = target.forward(pack([Segment(rows, tokens[start : start + size], None, "last")], store))
            store.commit(rows, np.arange(size, dtype=np.int32))
            start += size
        assert rows.state is not None
        carried.append([*rows.state.front.windows, *rows.state.front.matrices])
        logits.append(found)
    assert torch.equal(*logits)
    assert all(torch.equal(*each) for each in zip(*carried, strict=True))
