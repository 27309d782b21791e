"""A device's memory holds the largest step: what it takes is measured before the cache is sized, and no step has more
rows of logits than that one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from decoding.cache.batch import StepBatch
from decoding.cache.top_token_store import TopTokenStore
from decoding.core.events import PromptLogprobs
from decoding.core.token_logprobs import TokenLogprobs
from decoding.costs.price import CostCurve
from decoding.engine import limits, start
from decoding.engine.engine import Engine
from decoding.engine.limits import limits_for
from decoding.engine.start import start_engine
from decoding.model import memory
from decoding.model.device import graph_runner
from decoding.model.device.runner import Forward
from decoding.model.memory import captured_bytes, step_bytes
from decoding.model.target_model import TargetModel
from decoding.stores.successor_table import NUM_SUCCESSORS
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import CONFIG, GREEDY, draft_of, finish, prompt_of, request_of
from tests.recording import RecordingCapture

SMALL = replace(CONFIG, attention="padded", max_model_len=320, max_batch_rows=256, kv_slots=4096)
PROMPT_LOGITS, TREE_TOKENS = 48, 40
CURVE = CostCurve(base=1.0, token=0.001, key=0.0)


class Allocator(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, as long as they live: a `Meter`."""

    def __init__(self) -> None:
        super().__init__()
        self._living: dict[int, Any] = {}
        self._taken = self._most = 0

    def start(self) -> None:
        self._taken = self._most = 0
        self.__enter__()

    def stop(self) -> int:
        self.__exit__(None, None, None)
        return self._most

    def free(self) -> None:
        """Nothing is kept."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        given = {_memory(each) for each in _tensors((args, kwargs))}
        for tensor in _tensors(found):
            storage, place = tensor.untyped_storage(), _memory(tensor)
            if place not in given and place not in self._living:
                self._living[place] = weakref.finalize(storage, self._free, place, storage.nbytes())
                self._taken += storage.nbytes()
                self._most = max(self._most, self._taken)
        return found

    def _free(self, place: int, num_bytes: int) -> None:
        del self._living[place]
        self._taken -= num_bytes


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    leaves = (leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return (leaf for leaf in leaves if leaf.layout == torch.strided)  # packed weights have no storage


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class Watching:
    """A runner whose steps are remembered: tokens, rows of logits, and the bytes they took."""

    def __init__(self, model: TargetModel) -> None:
        self._model = model
        self.steps: list[tuple[int, int, int]] = []

    def launch(self, batch: StepBatch) -> Forward:
        meter = Allocator()
        meter.start()
        forward = self._model.launch(batch)
        self.steps.append((batch.num_tokens, len(batch.logit_rows_R), meter.stop()))
        return forward


@pytest.fixture
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GPU_PROMPT_LOGITS", PROMPT_LOGITS)
    monkeypatch.setattr(limits, "GPU_TREE_TOKENS", TREE_TOKENS)
    monkeypatch.setattr(start, "limits_for", lambda config, curve, _, *room: limits_for(config, curve, "cuda", *room))


def prompt_logprobs(engine: Engine) -> list[TokenLogprobs | None]:
    engine.add(request_of("scored", prompt_of(200, 5), replace(GREEDY, max_tokens=4, prompt_logprobs=1), "none"))
    told: list[TokenLogprobs | None] = []
    while engine.has_work:
        for each in engine.step().of(PromptLogprobs):
            told += each.logprobs
    return told


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_no_step_takes_more_than_the_largest_one_did_when_it_was_measured() -> None:
    model = TargetModel.from_model(tiny("llama", vocab_size=6000), SMALL)
    engine = start_engine(model, SMALL)
    engine._runner = watched = Watching(model)  # type: ignore[assignment]
    engine.costs.curve = replace(engine.costs.curve, head=0.0)  # so that every row of a prompt seems worth its logits
    engine.costs._take_curves = lambda: None  # type: ignore[method-assign]
    most = step_bytes(model, engine.limits.max_batch_rows, engine.limits.max_logits, Allocator())
    for number in range(12):
        method = "auto" if number % 3 else "recycle"
        scores = 1 if number == 3 else None
        sampling = replace(GREEDY, max_tokens=12, prompt_logprobs=scores)
        engine.add(request_of(str(number), prompt_of(150 + number, number, 6000), sampling, method))
    finish(engine)
    assert max(tokens for tokens, *_ in watched.steps) > 200
    assert max(num_logits for _, num_logits, _ in watched.steps) <= engine.limits.max_logits
    assert 0.3 * most < max(num_bytes for *_, num_bytes in watched.steps) <= most


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_a_prompts_log_probabilities_are_told_in_slices_and_whole() -> None:
    found = prompt_logprobs(start_engine(TargetModel.from_model(tiny("llama"), SMALL), SMALL))
    plain = replace(SMALL, attention="auto")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(start, "limits_for", limits_for)
        expected = prompt_logprobs(start_engine(TargetModel.from_model(tiny("llama"), plain), plain))
    assert len(found) == len(expected) == 200
    for ours, theirs in zip(found[1:], expected[1:], strict=True):
        assert ours is not None
        assert theirs is not None
        assert (ours.token_id, ours.rank) == (theirs.token_id, theirs.rank)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_the_cache_leaves_room_for_the_largest_step(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(SMALL, kv_slots=None, kv_memory=0.85)
    model = TargetModel.from_model(tiny("llama", vocab_size=6000), config)
    needed = step_bytes(model, SMALL.max_batch_rows or 0, PROMPT_LOGITS + TREE_TOKENS, Allocator())
    free = 4 * needed
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    monkeypatch.setattr(start, "meter_on", lambda _: Allocator())
    engine = start_engine(model, config)
    cache = engine.store.num_blocks * 16 * model.bytes_per_slot
    assert needed > 0.15 * free, "more than the share that is left to everything else"
    assert 0 < cache <= 0.85 * (free - needed)


@pytest.mark.usefixtures("_as_on_a_gpu")
def test_the_cache_leaves_room_for_what_captured_forwards_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_runner, "BUCKETS", (64,))
    config = replace(SMALL, kv_slots=None, kv_memory=0.85, max_batch_rows=64, max_model_len=96)
    model, draft = (TargetModel.from_model(tiny("llama"), config, RecordingCapture()) for _ in "ab")
    held = captured_bytes(model, model.max_model_len + config.max_nodes, 64, Allocator())
    assert held > 2 * step_bytes(model, 64, 64, Allocator()), "a capture that keeps every operation's results"
    monkeypatch.setattr(memory, "free_bytes", lambda _: 4 * held)
    monkeypatch.setattr(start, "meter_on", lambda _: Allocator())
    slot_bytes = model.bytes_per_slot + TopTokenStore.bytes_per_slot(NUM_SUCCESSORS)
    for models, of_slot in (([model], slot_bytes), ([model, draft], slot_bytes + draft.bytes_per_slot)):
        most = limits_for(config, CURVE, "cuda", 1000)
        needed = start._step_bytes(models, config, most, lambda _sentence, _fraction: None)
        assert needed == pytest.approx(len(models) * held + 64 * VOCAB_SIZE * start.EDITED_BYTES, rel=0.02)
        slots = memory.affordable_slots(config, torch.device("cuda"), of_slot, step_bytes=needed)
        assert 0 < slots * of_slot <= 0.85 * (4 * held - needed)


def test_prompts_that_a_draft_model_catches_up_on_share_one_steps_rows() -> None:
    target, draft = TargetModel.from_model(tiny("llama"), CONFIG), draft_of("llama")
    engine = start_engine(target, replace(CONFIG, max_batch_rows=64), draft_model=draft)
    assert engine.draft_model is not None
    engine.draft_model._runner = watched = Watching(draft)  # type: ignore[union-attr, assignment]
    for number in range(5):  # run plain, until all of them draft at once
        engine.add(request_of(str(number), prompt_of(50, number), replace(GREEDY, max_tokens=40), "none"))
    while any(len(each.request.output) < 8 for each in engine._scheduler.all()):
        engine.step()
    for sequence in list(engine._scheduler.all()):
        again = request_of(f"{sequence.request.id} again", sequence.request.tokens, GREEDY, "dynamic", max_nodes=8)
        engine.add(again)
    finish(engine)
    assert 1 < max(tokens for tokens, *_ in watched.steps) <= 64
