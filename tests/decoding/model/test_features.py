"""Features are what transformers calls hidden states, row by row, in chains and in trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from decoding.cache.batch import Segment, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.errors import ModelRefused
from decoding.model.features import FeatureTap
from tests.models import tiny
from tests.pairs import prompt_of, target_of
from tests.trees import path_to, random_parents

LAYERS = (0, 1, 3)


def expected_of(model_type: str, tokens: np.ndarray) -> torch.Tensor:
    """[N, F]: what goes into layers 0 and 1, and what leaves the last, before the norm that follows it."""
    model = tiny(model_type)
    before_norm: list[torch.Tensor] = []
    norm = next(each for name, each in model.named_modules() if name.split(".")[-1] in ("norm", "final_layer_norm"))
    norm.register_forward_pre_hook(lambda _module, inputs: before_norm.append(inputs[0]))
    with torch.no_grad():
        hidden = model(input_ids=torch.from_numpy(tokens)[None].long(), output_hidden_states=True).hidden_states
    return torch.cat([hidden[0], hidden[1], before_norm[0]], dim=-1)[0]


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox"])
def test_every_row_of_chains_and_trees_has_the_features_of_its_path(model_type: str) -> None:
    target = target_of(model_type)
    tap = target.tap(LAYERS)
    cache = KvCache(target.new_store(num_blocks_for(256)))
    prompt = prompt_of(70)  # more rows than run as one call
    tree, parents = prompt_of(9, 1), random_parents(9, np.random.default_rng(0))
    rows, other = cache.new_rows(96), cache.new_rows(64)
    target.forward(pack([Segment(rows, prompt, None, "none")], cache.store))
    torch.testing.assert_close(tap.rows(torch.arange(70)), expected_of(model_type, prompt), rtol=1e-4, atol=1e-4)
    cache.store.commit(rows, np.arange(70, dtype=np.int32))
    target.forward(pack([Segment(other, prompt_of(5, 2), None, "last"), Segment(rows, tree, parents)], cache.store))
    for node in range(9):
        path = np.concatenate((prompt, tree[path_to(node, parents)]))
        expected = expected_of(model_type, path)[-1]
        torch.testing.assert_close(tap.rows(torch.tensor([5 + node]))[0], expected, rtol=1e-4, atol=1e-4)


def test_a_model_whose_layers_cannot_be_told_or_read_is_refused() -> None:
    with pytest.raises(ModelRefused, match="no list of 3 layers"):
        FeatureTap(nn.Sequential(nn.Linear(2, 2)), 3, (0, 1, 2))
    block = nn.Identity()
    FeatureTap(nn.Sequential(nn.ModuleList([block])), 1, (0,))
    with pytest.raises(ModelRefused, match="has 4 dimensions"):
        block(torch.zeros(1, 2, 3, 4))
