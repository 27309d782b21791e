"""A head's few rows as one call: the bits of the modules that it stands for, and none but those."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from decoding.cache.batch import LogitRows, Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.drafting.eagle import loaded_head
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.eagle.network import HeadLayer
from decoding.model.target_model import TargetModel
from tests.decoding.weights.test_float_panels import DTYPES
from tests.heads import fields_of, new_head
from tests.models import tiny
from tests.trees import random_parents

WIDE = {"head_dim": 32}  # int8 layers have at least 64 outputs
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (1, {}),
    "on two threads, normed before and behind": (2, {"norm_before_residual": True, "norm_output": True}),
    "qwen3, biased": (1, {"model_type": "qwen3", "architectures": ["Eagle3"], "attention_bias": True}),
}


def head_of(dtype: torch.dtype, threads: int = 1, **fields: Any) -> HeadModel:
    target = TargetModel.from_model(tiny("llama").to(dtype), EngineConfig(max_model_len=256, threads=threads))
    if target.attention != "exact":
        pytest.skip("heads are fused beside exact attention")
    return HeadModel(new_head(target.shared.embeddings.float(), fields_of(**WIDE, **fields)).to(dtype), target)


def steps_of(head: HeadModel, counts: tuple[int, ...], logits: LogitRows) -> list[StepBatch]:
    """Random trees after a prompt, each beside a chain."""
    cache = KvCache(head.new_store(2 * num_blocks_for(128)))
    rows, other = cache.new_rows(128), cache.new_rows(128)
    tokens = np.arange(200, dtype=np.int32) % head.vocab_size
    head.forward(pack([Segment(rows, tokens[:37], None, "none")], cache.store))
    cache.store.commit(rows, np.arange(37, dtype=np.int32))
    trees = [random_parents(count, np.random.default_rng(count)) for count in counts]
    return [
        pack(
            [Segment(rows, tokens[: len(tree)], tree, logits), Segment(other, tokens[50:53], None, "last")], cache.store
        )
        for tree in trees
    ]


def check(head: HeadModel) -> None:
    assert head._fused is not None
    for logits in ("all", "last"):
        for batch in steps_of(head, (1, 2, 7, 33, 61), logits):
            hidden_ME = torch.randn(batch.num_tokens, head.width).to(head.dtype)
            found = head.run(batch, hidden_ME)
            with torch.inference_mode():
                expected = head._run_modules(batch, hidden_ME)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1].float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_fused_head_gives_the_bits_of_its_modules(kind: str, dtype: torch.dtype) -> None:
    threads, fields = KINDS[kind]
    check(head_of(dtype, threads, **fields))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_whose_weights_cannot_be_rounded_does_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = head_of(dtype)
    monkeypatch.setattr(loaded_head, "can_round_to_int8", lambda *_: False)
    head = head_of(dtype)
    check(head)
    assert head.num_bytes >= rounded.num_bytes


def test_a_head_that_computes_something_else_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = HeadLayer.forward
    monkeypatch.setattr(HeadLayer, "forward", lambda self, *given: 1.01 * plain(self, *given))
    head = head_of(torch.float32)
    assert head._fused is None
    (batch,) = steps_of(head, (5,), "all")
    assert head.forward(batch).isfinite().all()
