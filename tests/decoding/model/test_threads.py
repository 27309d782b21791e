"""The number of threads never changes a bit of any logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.model.linear import exact as exact_linear
from decoding.model.target_model import TargetModel
from decoding.model.threads import ThreadChoice, choose_threads, use_threads
from decoding.weights.numbers.onednn_floats import can_pack
from tests.models import tiny


def config_of(dtype: str) -> EngineConfig:
    return EngineConfig(max_model_len=512, dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("mixtral", "float32"),
        *(pytest.param(each, "float32", marks=pytest.mark.slow) for each in ("gpt_neox", "gemma3_text", "qwen3_moe")),
        *(pytest.param(each, "bfloat16", marks=pytest.mark.slow) for each in ("gpt_neox", "gemma3_text", "mixtral")),
        pytest.param("qwen3_moe", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_logits_are_the_same_bits_on_any_number_of_threads(
    model_type: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_linear, "PARALLEL_WORK", 0)
    monkeypatch.setattr("decoding.attention.exact.PARALLEL_WORK", 0)
    if not can_pack(torch.device("cpu"), getattr(torch, dtype)):
        pytest.skip(f"this processor cannot pack {dtype}")
    model = TargetModel.from_model(tiny(model_type).to(getattr(torch, dtype)), config_of(dtype))
    assert model.is_exact
    assert len(model.threads.candidates) == len(choose_threads(None, 0, can_change=True).candidates)
    cache = KvCache(model.new_store(num_blocks_for(450)))
    context = cache.new_rows(450)
    tokens = np.random.default_rng(0).integers(3, model.vocab_size, 450).astype(np.int32)
    model.forward(pack([Segment(context, tokens[:50])], cache.store))
    cache.store.commit(context, np.arange(50, dtype=np.int32))
    for num_rows in (1, 2, 7, 33, 400):
        rows = []
        for count in (1, 2, 3):
            model.threads = ThreadChoice([count], count)
            rows.append(model.forward(pack([Segment(context, tokens[50 : 50 + num_rows])], cache.store)))
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[0], rows[2])


class Uneven(TargetModel):
    """One whose logits hang on the number of threads, as another processor's kernels might."""

    def _run(self, batch: StepBatch) -> torch.Tensor:
        return super()._run(batch) + 1e-6 * torch.get_num_threads()


def test_where_threads_change_bits_their_number_stays_and_is_in_the_fingerprint() -> None:
    even, uneven = (kind.from_model(tiny("llama"), config_of("float32")) for kind in (TargetModel, Uneven))
    if len(even.threads.candidates) == 1:
        pytest.skip("this machine has one core")
    assert uneven.is_exact
    assert uneven.threads.candidates == (even.threads.chosen,)
    assert uneven.fingerprint != even.fingerprint
    assert len(uneven.fingerprint) == len(even.fingerprint)


def test_both_kinds_of_compiled_loops_obey_the_number() -> None:
    import numba as nb

    for count in (1, 2, 1):
        use_threads(count)
        assert torch.get_num_threads() == count
        assert nb.get_num_threads() == min(count, nb.config.NUMBA_NUM_THREADS)
