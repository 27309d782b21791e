"""The rounds in which drafts grow, captured once for a row count and replayed: of a draft model, and of a head.

A tree grows over several forwards here, of which each tells the rows of the ones before again; contexts grow between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.step_tensors import StepBuffers, StepTensors, Work
from decoding.drafting.eagle.head_graphs import HeadGraphs
from decoding.drafting.eagle.head_model import HeadModel
from decoding.drafting.mtp.checkpoint import load_mtp
from decoding.model.device import graph_runner
from decoding.model.device.graph_runner import GraphRunner
from decoding.model.target_model import TargetModel
from tests.decoding.model.device.test_graph_runner import CONFIG, MOST_KEYS, SAME, baked_lengths, tokens
from tests.heads import new_head
from tests.models import tiny
from tests.mtp import mtp_of
from tests.recording import RecordingCapture

BUCKETS = (1, 4, 16)
# Rows of each depth of the trees, after those of a chain to catch up on.
ROUNDS = ([5, 3, 1], [1], [10, 7, 2], [3, 3, 3], [12])
NUM_SEQUENCES = 3


@dataclass
class Rounds:
    """is_same: whether a replay gives what the operations themselves give."""

    cache: KvCache
    is_same: Callable[[StepBatch], bool]

    def run(self) -> dict[bool, list[int]]:
        """How many rows the rounds had that were the same, and those that were not."""
        found: dict[bool, list[int]] = {True: [], False: []}
        for batch in _batches(self.cache):
            found[self.is_same(batch)].append(batch.num_tokens)
        return found


def _batches(cache: KvCache) -> Iterator[StepBatch]:
    """Each sequence catches up, then its tree grows by a depth a round, every other row under the last of the one
    before; what was caught up on is committed."""
    generator = np.random.default_rng(2)
    sequences = [cache.new_rows(100) for _ in range(NUM_SEQUENCES)]
    for number, (chain, *depths) in enumerate(ROUNDS):
        growing = sequences[: 1 + number % NUM_SEQUENCES]
        yield pack([Segment(rows, tokens(chain, generator), None, "last") for rows in growing], cache.store)
        for rows in growing:
            cache.store.commit(rows, np.arange(chain, dtype=np.int32))
        parents = np.empty(0, np.int32)
        for size in depths:
            written = len(parents)
            parents = np.append(parents, np.where(np.arange(size) % 2, written - 1, -1)).astype(np.int32)
            own = [Segment(rows, tokens(size, generator), parents, "all", written) for rows in growing]
            yield pack(own, cache.store)


def _of_draft_model() -> Rounds:
    model = TargetModel.from_model(tiny("llama"), CONFIG, RecordingCapture())
    cache = KvCache(model.new_store(40))
    runner = model.runner_over(cache.store, MOST_KEYS)
    assert isinstance(runner, GraphRunner)

    def is_same(batch: StepBatch) -> bool:
        return torch.allclose(runner.launch(batch).logits_RV.clone(), model.forward(batch), **SAME)

    return Rounds(cache, is_same)


def _of_head() -> Rounds:
    target = TargetModel.from_model(tiny("llama"), CONFIG, RecordingCapture())
    return _rounds_of(HeadModel(new_head(target.shared.embeddings), target, RecordingCapture()))


def _of_mtp_head() -> Rounds:
    mtp = mtp_of("mimo")
    target = TargetModel.from_model(mtp.model, CONFIG, RecordingCapture())
    with TemporaryDirectory() as folder:
        network = load_mtp(replace(CONFIG, model=str(mtp.write(Path(folder)))), target)
    assert network is not None
    return _rounds_of(HeadModel(network, target, RecordingCapture()))


def _rounds_of(head: HeadModel) -> Rounds:
    cache = KvCache(head.new_store(40))
    runner = head.runner_over(cache.store, MOST_KEYS)
    assert isinstance(runner, HeadGraphs)
    generator = torch.Generator().manual_seed(3)

    def is_same(batch: StepBatch) -> bool:
        hidden_ME = torch.randn(batch.num_tokens, head.width, generator=generator)
        replayed = [each.clone() for each in runner.run(batch, hidden_ME)]
        return all(
            torch.allclose(ours, own, **SAME) for ours, own in zip(replayed, head.run(batch, hidden_ME), strict=True)
        )

    return Rounds(cache, is_same)


MODELS = {"draft model": _of_draft_model, "head": _of_head, "MTP head": _of_mtp_head}


@pytest.fixture(params=MODELS)
def captured(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Rounds]:
    monkeypatch.setattr(graph_runner, "BUCKETS", BUCKETS)
    return MODELS[request.param]


def test_one_capture_for_each_bucket_fits_every_round(captured: Callable[[], Rounds]) -> None:
    rows = captured().run()
    assert rows[False] == []
    assert min(rows[True]) == 1
    assert max(rows[True]) > BUCKETS[-1], "some fit none"


def test_tensors_made_anew_are_caught(captured: Callable[[], Rounds], monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = captured()
    stage = StepBuffers.stage

    def moving(self: StepBuffers, batch: StepBatch, num_rows: int, work: Work) -> StepTensors:
        if self.room.rows == BUCKETS[-1]:
            self._device = self._device.clone()
        return stage(self, batch, num_rows, work)

    monkeypatch.setattr(StepBuffers, "stage", moving)
    assert rounds.run()[False]


def test_hidden_states_in_another_place_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "BUCKETS", BUCKETS)
    rounds = _of_head()
    run = HeadGraphs.run

    def moving(self: HeadGraphs, batch: StepBatch, hidden_ME: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._given_TE = self._given_TE.clone()
        return run(self, batch, hidden_ME)

    monkeypatch.setattr(HeadGraphs, "run", moving)
    assert rounds.run()[False]


def test_a_length_that_is_a_number_of_the_host_is_caught(
    captured: Callable[[], Rounds], monkeypatch: pytest.MonkeyPatch
) -> None:
    with baked_lengths(monkeypatch), pytest.raises(AssertionError, match="isinstance"):
        captured()  # what is captured so is not used
