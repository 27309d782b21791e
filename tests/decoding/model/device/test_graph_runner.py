"""A forward captured once for a row count gives every step of up to as many rows its logits; a stand-in replays it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from decoding.attention.padded import PaddedAttention
from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.step_tensors import StepBuffers, StepTensors, Work
from decoding.config import EngineConfig
from decoding.core.layer import LayerSpec
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.experts.separate import SERVED
from decoding.model.replacing import replacer
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny
from tests.recording import RecordingCapture, Waits
from tests.trees import random_parents

CONFIG = EngineConfig(attention="padded", max_model_len=128, threads=1)
BUCKETS, MOST_KEYS = (1, 4, 16, 32), 128
SAME = {"rtol": 1e-4, "atol": 1e-4}  # matrix products round by the number of rows


def model_of(model_type: str = "llama") -> TargetModel:
    model = TargetModel.from_model(tiny(model_type), CONFIG, RecordingCapture())
    model.fixed_rows = 1
    return model


@contextmanager
def baked_lengths(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is captured meanwhile reads lengths of the host, as they are then."""
    attend = PaddedAttention.attend

    def baked(
        self: PaddedAttention, layer: LayerSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepTensors
    ) -> torch.Tensor:
        lengths = torch.from_numpy(step.lengths_B.numpy().copy())
        return attend(self, layer, q, k, v, replace(step, lengths_B=lengths))

    with monkeypatch.context() as patched:
        patched.setattr(PaddedAttention, "attend", baked)
        yield


def runner_over(model: TargetModel, cache: KvCache) -> GraphRunner:
    runner = GraphRunner(model, PaddedAttention(), cache.store, MOST_KEYS, BUCKETS)
    runner.capture(RecordingCapture(), lambda _sentence, _fraction: None)
    return runner


def tokens(count: int, generator: np.random.Generator) -> NDArray[np.int32]:
    return generator.integers(0, VOCAB_SIZE, count).astype(np.int32)


def steps(cache: KvCache) -> Iterator[StepBatch]:
    """Prompts, trees and mixtures of both, of one to three requests whose contexts grow; each step is committed."""
    generator = np.random.default_rng(1)
    requests = [cache.new_rows(120) for _ in range(3)]
    for shape in ([7], [1], [0, 0, 3], [30, 2], [4, 1, 5], [0, 9], [1, 1, 1], [16], [20, 8, 4], [50], [1, 0, 14], [2]):
        segments, kept = [], []
        for rows, count in zip(requests, shape, strict=False):
            if count == 0:
                continue
            chunk = 0 if rows.length else count // 2
            parents = np.arange(-1, count - 1, dtype=np.int32)
            parents[chunk:] = random_parents(count - chunk, generator) + chunk
            segments.append(Segment(rows, tokens(count, generator), parents, count - chunk))
            path = np.arange(chunk + 1, dtype=np.int32)
            if count - 1 > chunk and parents[count - 1] == chunk:
                path = np.append(path, np.int32(count - 1))
            kept.append((rows, path))
        yield pack(segments, cache.store)
        for rows, path in kept:
            cache.store.commit(rows, path)


def differing(model: TargetModel, runner: GraphRunner, cache: KvCache) -> list[int]:
    """The steps of which a replay gives other logits than the model's own operations."""
    found = []
    for number, batch in enumerate(steps(cache)):
        replayed = runner.launch(batch).logits_RV.clone()
        if not torch.allclose(replayed, model.forward(batch), **SAME):
            found.append(number)
    return found


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt_oss"])
def test_one_capture_for_each_bucket_fits_every_step(model_type: str) -> None:
    model = model_of(model_type)
    cache = KvCache(model.new_store(40))
    assert differing(model, runner_over(model, cache), cache) == []


def test_padding_leaves_the_cache_alone() -> None:
    model = model_of()
    cache = KvCache(model.new_store(40))
    runner = runner_over(model, cache)
    for batch in steps(cache):
        planes = [plane.view(torch.int32) for layer in model.layers for plane in cache.store.planes(layer.index)]
        before = [plane.clone() for plane in planes]
        runner.launch(batch)
        written = {int(slot) // 16 for slot in batch.write_slots_M} | {cache.store.trash_block}
        others = [block for block in range(cache.store.num_blocks) if block not in written]
        assert all(torch.equal(old[others], new[others]) for old, new in zip(before, planes, strict=True))


def test_features_are_those_of_the_bucket_that_ran_last() -> None:
    model = model_of()
    tap = model.tap([1, 3])
    cache = KvCache(model.new_store(40))
    runner = runner_over(model, cache)
    for batch in steps(cache):
        rows = torch.arange(batch.num_tokens)
        runner.launch(batch)
        replayed = tap.rows(rows).clone()
        model.forward(batch)
        torch.testing.assert_close(replayed, tap.rows(rows), **SAME)


def test_tensors_made_anew_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a graph was captured with is what it reads: buffers that move would leave it behind."""
    model = model_of()
    cache = KvCache(model.new_store(40))
    runner = runner_over(model, cache)
    stage = StepBuffers.stage

    def moving(self: StepBuffers, batch: StepBatch, num_rows: int, work: Work) -> StepTensors:
        if self.room.keys == MOST_KEYS:
            self._device = self._device.clone()
        return stage(self, batch, num_rows, work)

    monkeypatch.setattr(StepBuffers, "stage", moving)
    assert differing(model, runner, cache)


def test_a_length_that_is_a_number_of_the_host_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    cache = KvCache(model.new_store(40))
    with baked_lengths(monkeypatch):
        runner = runner_over(model, cache)
    assert differing(model, runner, cache)


def test_replays_that_give_other_logits_are_told_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    model, told = model_of(), list[str]()
    store = model.new_store(40)
    with baked_lengths(monkeypatch):
        runner = model.runner_over(store, MOST_KEYS, 4, lambda sentence, _: told.append(sentence))
    assert runner is model
    assert "Forwards are not captured: a replay of" in told[-1]
    assert "rows gives logits that differ by" in told[-1]


def test_a_device_that_fails_while_forwards_are_captured_ends_the_start() -> None:
    class Failing(RecordingCapture):
        def note(self, _launch: Callable[[], None]) -> Callable[[], None]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    model = TargetModel.from_model(tiny("llama"), CONFIG, Failing())
    with pytest.raises(torch.OutOfMemoryError):
        model.runner_over(model.new_store(40), MOST_KEYS, 4)


@pytest.mark.parametrize("question", ["item", "nonzero"])
def test_a_forward_that_waits_for_the_device_is_caught(monkeypatch: pytest.MonkeyPatch, question: str) -> None:
    model = model_of()
    attend = PaddedAttention.attend

    def waiting(
        self: PaddedAttention, layer: LayerSpec, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, step: StepTensors
    ) -> torch.Tensor:
        getattr(step.lengths_B[:1] if question == "item" else step.lengths_B, question)()
        return attend(self, layer, q, k, v, step)

    monkeypatch.setattr(PaddedAttention, "attend", waiting)
    with pytest.raises(Waits):
        runner_over(model, KvCache(model.new_store(40)))


def test_a_model_that_waits_runs_as_it_comes_and_says_so() -> None:
    """Experts that run one by one ask the device which rows are whose."""
    own, told = tiny("gpt_oss"), list[str]()
    replacer.replace(own, [SERVED])
    model = TargetModel.from_model(own, CONFIG, RecordingCapture())
    cache = KvCache(model.new_store(40))
    runner = model.runner_over(cache.store, MOST_KEYS, 4, lambda sentence, _: told.append(sentence))
    assert runner is model
    assert told[-1].startswith("Forwards are not captured: ")


def test_only_buckets_that_are_needed_are_captured() -> None:
    model, told = model_of(), list[str]()
    model.runner_over(model.new_store(40), MOST_KEYS, 3, lambda sentence, _: told.append(sentence))
    assert [sentence.split()[-2] for sentence in told[:-1]] == ["4", "2", "1"]
    assert told[-1] == "Captured forwards of 3 sizes in 0 MiB"


def test_a_targets_steps_of_few_tokens_are_all_replayed_in_one_shape() -> None:
    assert list(graph_runner.buckets_for(20, graph_runner.FIXED_ROWS)) == [graph_runner.FIXED_ROWS]
    model = TargetModel.from_model(tiny("llama"), CONFIG, RecordingCapture())
    runner = model.runner_over(model.new_store(40), MOST_KEYS, 96)
    assert isinstance(runner, GraphRunner)
    assert set(runner._replays) == {graph_runner.FIXED_ROWS, 96}


def test_buckets_rise_from_a_single_row_to_where_rows_are_no_longer_free() -> None:
    assert tuple(sorted(set(graph_runner.BUCKETS))) == graph_runner.BUCKETS
    assert (graph_runner.BUCKETS[0], graph_runner.BUCKETS[-1]) == (1, 2048)


def test_a_prompt_is_replayed_and_its_few_logits_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "MOST_LOGITS", 8)
    model, shapes, run_static = model_of(), list[tuple[int, int]](), TargetModel.run_static

    def noted(self: TargetModel, step: StepTensors) -> torch.Tensor:
        logits_LV = run_static(self, step)
        shapes.append((len(step.ids_T), len(logits_LV)))
        return logits_LV

    monkeypatch.setattr(TargetModel, "run_static", noted)
    cache = KvCache(model.new_store(40))
    runner = runner_over(model, cache)
    assert set(shapes) == {(1, 1), (4, 4), (16, 8), (32, 8)}
    ids, rows = tokens(30, np.random.default_rng(0)), cache.new_rows(64)
    few, many = (pack([Segment(rows, ids, None, count)], cache.store) for count in (8, 9))
    assert runner.holds(few)
    assert not runner.holds(many)
    for batch in (few, many):
        torch.testing.assert_close(runner.launch(batch).logits_RV, model.forward(batch), **SAME)
