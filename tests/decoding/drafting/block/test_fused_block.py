"""A block head's few rows as one call: what its modules say, whoever sees whom and wherever there is room."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from decoding.cache.kv_store import KvStore, slots_of
from decoding.config import EngineConfig
from decoding.drafting.block.block_model import BlockModel
from decoding.drafting.block.block_step import Block
from decoding.drafting.block.network import BlockHead, BlockLayer
from decoding.drafting.eagle.kept_features import FeatureRows
from decoding.kernels.cpu.program import MOST_ROWS
from decoding.model.target_model import TargetModel
from decoding.weights import readers
from tests.blocks import corrected_fields, fields_of, new_block
from tests.decoding.weights.test_float_panels import DTYPES
from tests.models import tiny

SLIDING = ["sliding_attention", "full_attention"]
KINDS: dict[str, dict[str, Any]] = {
    "all see all": fields_of(),
    "causal": fields_of(is_causal=True),
    "some layers causal, with windows": fields_of(layer_types=SLIDING, sliding_window=7),
    "windows, all see all": fields_of(layer_types=SLIDING, sliding_window=7, is_causal=False),
    "corrected, biased, capped": corrected_fields(attention_bias=True)
    | {"output_multiplier": 0.4, "final_logit_softcapping": 2.0},
}
LENGTHS = (1, 37, 15, 16, 90)  # of what is before each block


@pytest.fixture(autouse=True)
def ours_is_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no clock decides how many rows are fused."""
    monkeypatch.setattr(readers, "most_rows_worth", lambda *_: MOST_ROWS)


def model_of(fields: dict[str, Any], dtype: torch.dtype = torch.float32) -> BlockModel:
    model = tiny("llama")
    target = TargetModel.from_model(tiny("llama").to(dtype), EngineConfig(max_model_len=256, threads=1))
    if target.attention != "exact":
        pytest.skip("heads are fused beside exact attention")
    new = new_block(model, fields)
    head = BlockHead(new.config, target.shared.embedding, target.shared.output).to(dtype)
    head.load_state_dict(new.own_state(), strict=False)
    return BlockModel(head.to(dtype), target)


def blocks_of(model: BlockModel) -> tuple[list[Block], KvStore]:
    """Blocks behind tokens that were read, in tables that end with these tokens."""
    store = model.new_store(16)
    free, blocks = np.random.default_rng(0).permutation(16).astype(np.int32), []
    for place, length in enumerate(LENGTHS):
        count = -(-length // 16)
        table, free = free[:count], free[count:]
        num_features = model.width * len(model._head.config.feature_layers)
        features = torch.randn(length, num_features, generator=torch.Generator().manual_seed(place)).to(model.dtype)
        model.read(FeatureRows(slots_of(table, np.arange(length)), np.arange(length), features), store)
        blocks.append(model.block(20 + place, table, length))
    return blocks, store


def difference(model: BlockModel, blocks: list[Block], store: KvStore) -> tuple[float, bool]:
    """Of what is named, in parts of the largest logit, from what the modules say; and whether one call named it."""
    fused, results = model._fused, list[torch.Tensor | None]()
    assert fused is not None
    run = fused.run

    def seen(*given: Any) -> torch.Tensor | None:
        results.append(run(*given))
        return results[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "run", seen)
        found_RV = model.name(blocks, store)
        patch.setattr(model, "_fused", None)
        wanted_RV = model.name(blocks, store)
    [result] = results
    return float((found_RV - wanted_RV).abs().max() / wanted_RV.abs().max()), result is not None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_block_says_what_its_modules_do(kind: str, dtype: torch.dtype) -> None:
    model = model_of(KINDS[kind], dtype)
    blocks, store = blocks_of(model)
    parts, is_fused = difference(model, blocks, store)
    assert is_fused
    assert parts < (0.1 if dtype == torch.bfloat16 else 0.01)


def test_where_there_is_no_room_for_rows_the_modules_run() -> None:
    model = model_of(KINDS["causal"])
    blocks, store = blocks_of(model)
    store.spare_blocks = store.spare_blocks[:1]
    assert difference(model, blocks, store) == (0.0, False)


def test_a_block_that_hides_its_rows_or_computes_something_else_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_of(fields_of(layer_types=SLIDING, sliding_window=3, is_causal=False))._fused is None
    plain = BlockLayer.forward
    monkeypatch.setattr(BlockLayer, "forward", lambda self, *given: 2 * plain(self, *given).roll(1, dims=-1))
    assert model_of(KINDS["causal"])._fused is None
