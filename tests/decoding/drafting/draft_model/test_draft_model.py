"""The draft model: trees that grow over several forwards, in rounds of all requests, on rows that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from decoding.cache.slab import SlabStore
from decoding.cache.slot_pool import SlotPool
from decoding.cache.store import KvHandle, KvStore
from numpy.typing import NDArray
from transformers import PreTrainedModel

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, Verdict
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.draft_model import DraftModel
from decoding.drafting.draft_model.dynamic import ModelDrafter, linear_rules
from decoding.drafting.draft_model.growth import Rules
from decoding.drafting.draft_model.state import DraftModelState, GrowthRequest
from decoding.model.target_model import Progress, TargetModel
from decoding.sampling.verify import walk
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import CONFIG, prompt_of
from tests.trees import path_to, random_parents

Tokens = NDArray[np.int32]
WIDE = Rules(b_min=1, b_mid=2, b_max=3, d_base=3, d_max=4, rho_stop=0.001, tau=0.0001)


class WatchedModel(TargetModel):
    """Remembers what went through it; its store is of the layout that `store` names."""

    def __init__(self, model: PreTrainedModel, config: EngineConfig, progress: Progress) -> None:
        self.batches: list[StepBatch] = []
        self.store = "slab"
        super().__init__(model, config, progress)

    def new_store(self, num_slots: int) -> KvStore:
        return new_store(self.store, self, num_slots)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        self.batches.append(batch)
        return super().forward(batch)


def new_store(kind: str, model: TargetModel, num_slots: int) -> KvStore:
    if kind == "slab":
        return SlabStore(model.layers, num_slots, model.dtype)
    return SlotPool(model.layers, num_slots, model.dtype, model.device)


@cache
def model_of(attention: str, model_type: str = "llama") -> WatchedModel:
    model = WatchedModel.from_model(tiny(model_type), replace(CONFIG, attention=attention))  # type: ignore[arg-type]
    assert isinstance(model, WatchedModel)
    return model


@cache
def draft_model_of(attention: str = "exact", store: str = "slab") -> DraftModel:
    model = model_of(attention)
    model.store = store
    return DraftModel(model, CONFIG, 2048, VOCAB_SIZE)


def handle_of(store: KvStore, room: int) -> KvHandle:
    handle = store.allocate(room)
    assert handle is not None
    return handle


def prefill(model: TargetModel, store: KvStore, handle: KvHandle, tokens: Tokens) -> None:
    model.forward(pack([Segment(handle, tokens, None, "none")], store))
    store.commit(handle, np.arange(len(tokens), dtype=np.int32))


def forest_of(num_nodes: int, seed: int) -> Tokens:
    """Parents of a tree without its root: several nodes follow the committed tokens."""
    return random_parents(num_nodes + 1, np.random.default_rng(seed))[1:] - np.int32(1)


KINDS = [("exact", "slab"), ("sdpa", "slab"), ("sdpa", "pool"), ("reference", "slab"), ("reference", "pool")]
LENGTHS = (37, 0, 9)
CUTS = ((0, 3, 4, 20), (0, 6, 13, 20), (0, 1, 17, 20))


def scene(model: TargetModel, store: KvStore) -> tuple[list[KvHandle], list[Tokens], list[Tokens]]:
    """Three requests of different lengths with a tree each: handles, tokens, parents."""
    handles = []
    for seed, length in enumerate(LENGTHS):
        handles.append(handle_of(store, 96))
        if length:
            prefill(model, store, handles[-1], prompt_of(length, seed))
    return handles, [prompt_of(20, 10 + seed) for seed in range(3)], [forest_of(20, seed) for seed in range(3)]


def at_once(model: TargetModel, store: KvStore) -> torch.Tensor:
    """[3, 20, V] of the scene's trees in one forward."""
    handles, tokens, parents = scene(model, store)
    logits_RV = model.forward(pack([Segment(*each) for each in zip(handles, tokens, parents, strict=True)], store))
    return logits_RV.view(3, 20, -1)


def in_waves(model: TargetModel, store: KvStore) -> tuple[torch.Tensor, torch.Tensor]:
    """The same over three forwards, other requests' chunks between; and [3, V] after a path of each was kept."""
    handles, tokens, parents = scene(model, store)
    waves = [[], [], []]
    for wave in range(3):
        segments = [
            Segment(handle, ids[cut[wave] : cut[wave + 1]], up[: cut[wave + 1]], "all", cut[wave])
            for handle, ids, up, cut in zip(handles, tokens, parents, CUTS, strict=True)
        ]
        other = handle_of(store, 16)
        batch = pack([segments[0], Segment(other, prompt_of(16), None, "none"), *segments[1:]], store)
        logits_RV = model.forward(batch)
        store.free(other)
        offsets = np.delete(batch.logit_offsets, 1)
        for place in range(3):
            waves[place].append(logits_RV[offsets[place] : offsets[place + 1]])
        store.check_integrity()
    after = []
    for handle, up in zip(handles, parents, strict=True):
        store.commit(handle, path_to(19, up))
        store.check_integrity()
        after.append(model.forward(pack([Segment(handle, np.array([7], np.int32))], store))[0])
    return torch.stack([torch.cat(parts) for parts in waves]), torch.stack(after)


def after_paths(model: TargetModel, store: KvStore) -> torch.Tensor:
    """[3, V]: one token after each prompt and path, from nothing."""
    rows = []
    for seed, length in enumerate(LENGTHS):
        path = prompt_of(20, 10 + seed)[path_to(19, forest_of(20, seed))]
        tokens = np.concatenate((prompt_of(length, seed), path, [7])).astype(np.int32)
        rows.append(model.forward(pack([Segment(handle_of(store, 64), tokens, None, "last")], store))[0])
    return torch.stack(rows)


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
@pytest.mark.parametrize(("attention", "store"), KINDS)
def test_a_tree_grown_over_several_forwards_is_the_tree_of_one(attention: str, store: str, model_type: str) -> None:
    model = model_of(attention, model_type)
    once = at_once(model, new_store(store, model, 512))
    grown, after = in_waves(model, new_store(store, model, 512))
    fresh = after_paths(model, new_store(store, model, 512))
    if model.is_exact:
        assert torch.equal(grown, once)
        assert torch.equal(after, fresh)
    torch.testing.assert_close(grown, once, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, fresh, rtol=1e-4, atol=1e-4)


def test_what_a_row_may_see_matters_to_the_scene() -> None:
    """The scene above would not pass if the written rows were left out."""
    model = model_of("exact")
    store = new_store("slab", model, 512)
    handles, tokens, parents = scene(model, store)
    alone = model.forward(pack([Segment(handles[0], tokens[0][19:], np.array([-1], np.int32))], store))[0]
    assert parents[0][19] >= 0
    assert (alone - at_once(model, new_store("slab", model, 512))[0, 19]).abs().max() > 0.1


def request_of(length: int, seed: int = 0, temperature: float = 0.0) -> Request:
    return Request(
        id=f"request {seed}",
        prompt=prompt_of(length, seed),
        sampling=SamplingParams(max_tokens=120, temperature=temperature, seed=seed, ignore_eos=True),
        speculation=SpeculationParams(method="dynamic"),
    )


def chain_drafter(draft_model: DraftModel, request: Request, length: int) -> tuple[ModelDrafter, DraftModelState]:
    state = draft_model.open(request)
    return ModelDrafter(request, state, linear_rules(SpeculationParams(method="linear", max_depth=length))), state


def ask(request: Request, state: DraftModelState, max_nodes: int = 24, round_price: float = 0.0) -> GrowthRequest:
    return GrowthRequest(state, request.num_tokens, DraftBudget(max_nodes, 0.0, round_price))


def judge(tree: DraftTree, num_accepted: int) -> Verdict:
    """A target that goes along the tree's first branches for so many nodes and then says something else."""
    chosen = np.empty(len(tree), np.int32)
    for node in range(len(tree)):
        children = tree.tokens[1:][tree.parents[1:] == node].tolist()
        other = next(token for token in range(3, VOCAB_SIZE) if token not in children)
        is_kept = children and tree.depths()[node] < num_accepted
        chosen[node] = children[-1] if is_kept else other
    return walk(tree, chosen)


def greedy_reply(tokens: Tokens, count: int) -> list[int]:
    """What the draft model's own weights say next, by transformers."""
    generated = _untouched().generate(
        torch.from_numpy(tokens.astype(np.int64))[None],
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return generated[0, len(tokens) :].tolist()


@cache
def _untouched() -> PreTrainedModel:
    return tiny("llama")


def assert_rows_are_of_the_tokens(draft_model: DraftModel, states: Sequence[DraftModelState]) -> None:
    """Every state's keys and values are those of a fresh prefill of the first tokens of its request."""
    model = draft_model.model
    for state in states:
        assert state.handle is not None
        length = state.num_committed
        store = new_store("slab" if isinstance(draft_model.store, SlabStore) else "pool", model, 256)
        fresh = handle_of(store, length)
        prefill(model, store, fresh, state.request.tokens[:length])
        for layer in range(len(model.layers)):
            kept = state.store.gather(layer, state.store.rows(state.handle, length))
            expected = store.gather(layer, store.rows(fresh, length))
            for one, other in zip(kept, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_chain_is_what_the_draft_model_says_step_by_step_and_no_token_goes_through_it_twice() -> None:
    draft_model, length = draft_model_of(), 6
    model = model_of("exact")
    request = request_of(23)
    drafter, state = chain_drafter(draft_model, request, length)
    model.batches.clear()
    num_expanded = num_kept = num_seen = 0
    for num_accepted in (0, 2, 6, 5, 1, 6, 0, 3):
        [tree] = draft_model.propose_batch([ask(request, state)])
        assert isinstance(tree, DraftTree)
        num_seen, num_expanded = request.num_tokens, num_expanded + length - 1
        assert sum(batch.num_tokens for batch in model.batches) == num_seen + num_expanded - num_kept
        assert tree.parents.tolist() == list(range(-1, length))
        assert tree.tokens[1:].tolist() == greedy_reply(request.tokens, length)
        verdict = judge(tree, num_accepted)
        assert verdict.num_accepted == num_accepted
        request.extend(verdict.tokens)
        drafter.observe(tree, verdict, None)
        num_kept += min(num_accepted, length - 1)  # the last node of a chain is never run
        assert state.num_committed == num_seen + min(num_accepted, length - 1)
    state.close()
    assert draft_model.store.used == 0


def test_all_requests_of_a_depth_go_through_one_forward_and_rounds_stop_when_none_grows() -> None:
    draft_model, model = draft_model_of(), model_of("exact")
    requests = [request_of(8 + seed, seed) for seed in range(3)]
    states = [
        chain_drafter(draft_model, request, length)[1] for request, length in zip(requests, (3, 5, 7), strict=True)
    ]
    model.batches.clear()
    trees = draft_model.propose_batch([ask(request, state) for request, state in zip(requests, states, strict=True)])
    assert [batch.num_segments for batch in model.batches] == [3, 3, 3, 2, 2, 1, 1]
    assert [batch.num_tokens for batch in model.batches] == [8 + 9 + 10, 3, 3, 2, 2, 1, 1]
    assert [tree.num_drafted for tree in trees if isinstance(tree, DraftTree)] == [3, 5, 7]
    assert all(state.take_cost().seconds > 0 for state in states)
    assert all(state.take_cost().seconds == 0 for state in states)
    for state in states:
        state.close()


def test_a_round_that_promises_less_than_it_costs_is_not_run() -> None:
    draft_model, model = draft_model_of(), model_of("exact")
    request = request_of(12)
    _, state = chain_drafter(draft_model, request, 6)
    model.batches.clear()
    [tree] = draft_model.propose_batch([ask(request, state, round_price=50.0)])
    assert len(model.batches) == 1
    assert isinstance(tree, DraftTree)
    assert tree.num_drafted == 1
    state.close()


def test_a_sequence_with_more_than_a_chunk_to_read_gets_no_tree_yet() -> None:
    draft_model = draft_model_of()
    request = request_of(2 * CONFIG.prefill_chunk + 5)
    _, state = chain_drafter(draft_model, request, 4)
    for expected in (0, 0, 4):
        [tree] = draft_model.propose_batch([ask(request, state)])
        assert isinstance(tree, DraftTree)
        assert tree.num_drafted == expected
        assert tree.tokens[0] == request.tokens[-1]
        assert_rows_are_of_the_tokens(draft_model, [state])
    assert state.num_committed == request.num_tokens
    state.close()


def test_a_prompt_that_goes_on_is_followed_without_a_tree() -> None:
    draft_model, model = draft_model_of(), model_of("exact")
    request = request_of(40)
    _, state = chain_drafter(draft_model, request, 4)
    model.batches.clear()
    assert draft_model.propose_batch([GrowthRequest(state, 32, None)]) == [None]
    assert state.num_committed == 32
    assert [batch.num_tokens for batch in model.batches] == [32]
    assert len(model.batches[0].logit_rows_R) == 0
    state.close()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize(("attention", "store"), [("exact", "slab"), ("sdpa", "pool")])
def test_after_every_step_the_draft_model_holds_the_first_tokens_of_each_request(
    attention: str, store: str, temperature: float
) -> None:
    draft_model = draft_model_of(attention, store)
    generator = np.random.default_rng(3)
    requests = [request_of(11 + 9 * seed, seed, temperature) for seed in range(3)]
    states = [draft_model.open(request) for request in requests]
    drafters = [ModelDrafter(request, state, WIDE) for request, state in zip(requests, states, strict=True)]
    num_kept = num_dropped = num_scattered = 0
    for _ in range(8):
        asks = [ask(request, state) for request, state in zip(requests, states, strict=True)]
        trees = draft_model.propose_batch(asks)
        for request, state, drafter, tree in zip(requests, states, drafters, trees, strict=True):
            assert isinstance(tree, DraftTree)
            tree.check_integrity()
            verdict = judge(tree, int(generator.integers(0, 5)))
            before = state.num_committed
            request.extend(verdict.tokens)
            drafter.observe(tree, verdict, None)
            draft_model.store.check_integrity()
            kept = state.num_committed - before
            num_kept, num_dropped = num_kept + kept, num_dropped + tree.num_drafted - kept
            num_scattered += bool((np.diff(verdict.path) > 1).any()) and kept > 1
            assert before <= state.num_committed < request.num_tokens
        assert_rows_are_of_the_tokens(draft_model, states)
    assert num_kept > 5
    assert num_dropped > 5
    assert num_scattered > 2
    for state in states:
        state.close()
    assert draft_model.store.used == 0
    draft_model.store.check_integrity()
