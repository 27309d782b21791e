"""The draft model: trees that grow over several forwards, in rounds of all requests, on rows that are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import BLOCK_LEN, BlockPool, BlockTable, num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvRows, KvStore
from decoding.cache.prefix_index import PrefixIndex
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
from decoding.model.device.capture import Capture
from decoding.model.device.runner import Forward, Progress
from decoding.model.target_model import TargetModel
from decoding.sampling.verify import walk
from tests.models import VOCAB_SIZE, tiny
from tests.pairs import CONFIG, prompt_of
from tests.trees import path_to, random_parents

Tokens = NDArray[np.int32]
WIDE = Rules(b_min=1, b_mid=2, b_max=3, d_base=3, d_max=4, rho_stop=0.001, tau=0.0001)


class WatchedModel(TargetModel):
    """Remembers what went through it."""

    def __init__(
        self, model: PreTrainedModel, config: EngineConfig, progress: Progress, capture: Capture | None = None
    ) -> None:
        self.batches: list[StepBatch] = []
        super().__init__(model, config, progress, capture)

    def launch(self, batch: StepBatch) -> Forward:
        self.batches.append(batch)
        return super().launch(batch)


@cache
def model_of(attention: str, model_type: str = "llama") -> WatchedModel:
    model = WatchedModel.from_model(tiny(model_type), replace(CONFIG, attention=attention))  # type: ignore[arg-type]
    assert isinstance(model, WatchedModel)
    return model


class DraftBench:
    """Asks a draft model as an engine does: a block table for each request, long enough for its tokens and a tree."""

    def __init__(self, attention: str = "exact", most_rows: int = 160) -> None:
        self.model = model_of(attention)
        self.pool = BlockPool(128, PrefixIndex())
        self.draft_model = DraftModel(self.model, self.pool, most_rows, VOCAB_SIZE)
        self.tables: dict[DraftModelState, BlockTable] = {}
        self.drafters: dict[DraftModelState, ModelDrafter] = {}
        self.model.batches.clear()

    @property
    def num_rows(self) -> int:
        """That went through the draft model so far."""
        return sum(batch.num_tokens for batch in self.model.batches)

    def drafter(self, request: Request, rules: Rules) -> tuple[ModelDrafter, DraftModelState]:
        state = self.draft_model.open(request)
        self.tables[state] = self.pool.open()
        self.drafters[state] = ModelDrafter(request, state, rules)
        return self.drafters[state], state

    def chain(self, request: Request, length: int) -> tuple[ModelDrafter, DraftModelState]:
        return self.drafter(request, linear_rules(SpeculationParams(method="linear", max_depth=length)))

    def ask(self, *states: DraftModelState) -> list[DraftTree]:
        """The trees of one step."""
        for state in states:
            self._make_room(state, state.request.num_tokens)
        budget = DraftBudget(24)
        growths = [GrowthRequest(state, self.tables[state], state.request.num_tokens, budget) for state in states]
        assert not self.draft_model.grow_batch(growths)
        self.pool.check_integrity()
        return [self.drafters[state].propose(budget) for state in states]

    def follow(self, state: DraftModelState, end: int) -> None:
        """A step in which the prompt goes on after `end`."""
        self._make_room(state, end)
        assert not self.draft_model.grow_batch([GrowthRequest(state, self.tables[state], end, None)])

    def release(self, state: DraftModelState) -> None:
        """The request gives its blocks back; they can be found by its tokens."""
        table = self.tables[state]
        self.pool.publish(table, state.request.tokens[:-1])
        self.pool.release(table)
        state.forget_rows()
        self.tables[state] = self.pool.open()

    def _make_room(self, state: DraftModelState, end: int) -> None:
        table = self.tables[state]
        self.pool.find(table, state.request.tokens[:-1])
        has_room = self.pool.resize(table, max(end + 24, table.capacity))
        assert has_room
        self.pool.publish(table, state.request.tokens[:end])


def length_of(state: DraftModelState) -> int:
    """Tokens that the draft model has read."""
    assert state.rows is not None
    return state.rows.length


def prefill(model: TargetModel, store: KvStore, rows: KvRows, tokens: Tokens) -> None:
    model.forward(pack([Segment(rows, tokens, None, "none")], store))
    store.commit(rows, np.arange(len(tokens), dtype=np.int32))


def forest_of(num_nodes: int, seed: int) -> Tokens:
    """Parents of a tree without its root: several nodes follow the committed tokens."""
    return random_parents(num_nodes + 1, np.random.default_rng(seed))[1:] - np.int32(1)


LENGTHS = (37, 0, 9)
CUTS = ((0, 3, 4, 20), (0, 6, 13, 20), (0, 1, 17, 20))


def new_cache(model: TargetModel) -> KvCache:
    return KvCache(model.new_store(num_blocks_for(512)))


def scene(model: TargetModel, kv: KvCache) -> tuple[list[KvRows], list[Tokens], list[Tokens]]:
    """Three requests of different lengths with a tree each: rows, tokens, parents."""
    rows = []
    for seed, length in enumerate(LENGTHS):
        rows.append(kv.new_rows(96))
        if length:
            prefill(model, kv.store, rows[-1], prompt_of(length, seed))
    return rows, [prompt_of(20, 10 + seed) for seed in range(3)], [forest_of(20, seed) for seed in range(3)]


def at_once(model: TargetModel) -> torch.Tensor:
    """[3, 20, V] of the scene's trees in one forward."""
    kv = new_cache(model)
    segments = [Segment(*each) for each in zip(*scene(model, kv), strict=True)]
    logits_RV = model.forward(pack(segments, kv.store))
    return logits_RV.view(3, 20, -1)


def in_waves(model: TargetModel) -> tuple[torch.Tensor, torch.Tensor]:
    """The same over three forwards, other requests' chunks between; and [3, V] after a path of each was kept."""
    kv = new_cache(model)
    rows, tokens, parents = scene(model, kv)
    waves = [[], [], []]
    for wave in range(3):
        segments = [
            Segment(each, ids[cut[wave] : cut[wave + 1]], up[: cut[wave + 1]], "all", cut[wave])
            for each, ids, up, cut in zip(rows, tokens, parents, CUTS, strict=True)
        ]
        other = kv.new_rows(16)
        batch = pack([segments[0], Segment(other, prompt_of(16), None, "none"), *segments[1:]], kv.store)
        logits_RV = model.forward(batch)
        kv.pool.release(other.table)
        offsets = np.delete(batch.logit_offsets, 1)
        for place in range(3):
            waves[place].append(logits_RV[offsets[place] : offsets[place + 1]])
    after = []
    for each, up in zip(rows, parents, strict=True):
        kv.store.commit(each, path_to(19, up))
        after.append(model.forward(pack([Segment(each, np.array([7], np.int32))], kv.store))[0])
    return torch.stack([torch.cat(parts) for parts in waves]), torch.stack(after)


def after_paths(model: TargetModel) -> torch.Tensor:
    """[3, V]: one token after each prompt and path, from nothing."""
    kv, logits = new_cache(model), []
    for seed, length in enumerate(LENGTHS):
        path = prompt_of(20, 10 + seed)[path_to(19, forest_of(20, seed))]
        tokens = np.concatenate((prompt_of(length, seed), path, [7])).astype(np.int32)
        logits.append(model.forward(pack([Segment(kv.new_rows(64), tokens, None, "last")], kv.store))[0])
    return torch.stack(logits)


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
@pytest.mark.parametrize("attention", ["exact", "sdpa", "reference"])
def test_a_tree_grown_over_several_forwards_is_the_tree_of_one(attention: str, model_type: str) -> None:
    model = model_of(attention, model_type)
    once, (grown, after), fresh = at_once(model), in_waves(model), after_paths(model)
    if model.is_exact:
        assert torch.equal(grown, once)
        assert torch.equal(after, fresh)
    torch.testing.assert_close(grown, once, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after, fresh, rtol=1e-4, atol=1e-4)


def test_what_a_row_may_see_matters_to_the_scene() -> None:
    """The scene above would not pass if the written rows were left out."""
    model = model_of("exact")
    kv = new_cache(model)
    rows, tokens, parents = scene(model, kv)
    alone = model.forward(pack([Segment(rows[0], tokens[0][19:], np.array([-1], np.int32))], kv.store))[0]
    assert parents[0][19] >= 0
    assert (alone - at_once(model)[0, 19]).abs().max() > 0.1


def request_of(length: int, seed: int = 0, temperature: float = 0.0) -> Request:
    return Request(
        id=f"request {seed}",
        prompt=prompt_of(length, seed),
        sampling=SamplingParams(max_tokens=120, temperature=temperature, seed=seed, ignore_eos=True),
        speculation=SpeculationParams(method="dynamic"),
    )


def verdict_on(tree: DraftTree, num_accepted: int) -> Verdict:
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


def assert_rows_are_of_the_tokens(states: Sequence[DraftModelState], attention: str = "exact") -> None:
    """Every state's keys and values are those of a fresh prefill of the first tokens of its request."""
    model = model_of(attention)
    for state in states:
        assert state.rows is not None
        length, kv = state.rows.length, new_cache(model)
        fresh = kv.new_rows(length)
        prefill(model, kv.store, fresh, state.request.tokens[:length])
        for layer in range(len(model.layers)):
            kept = state.store.gather(layer, torch.from_numpy(state.rows.table.blocks).long(), length)
            expected = kv.store.gather(layer, torch.from_numpy(fresh.table.blocks).long(), length)
            for one, other in zip(kept, expected, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_chain_is_what_the_draft_model_says_step_by_step_and_no_token_goes_through_it_twice() -> None:
    bench, length = DraftBench(), 6
    request = request_of(23)
    drafter, state = bench.chain(request, length)
    num_expanded = num_kept = 0
    for num_accepted in (0, 2, 6, 5, 1, 6, 0, 3):
        [tree] = bench.ask(state)
        num_seen, num_expanded = request.num_tokens, num_expanded + length - 1
        assert bench.num_rows == num_seen + num_expanded - num_kept
        assert tree.parents.tolist() == list(range(-1, length))
        assert tree.tokens[1:].tolist() == greedy_reply(request.tokens, length)
        verdict = verdict_on(tree, num_accepted)
        assert verdict.num_accepted == num_accepted
        request.extend(verdict.tokens)
        drafter.observe(tree, verdict, None)
        num_kept += min(num_accepted, length - 1)  # the last node of a chain is never run
        assert length_of(state) == num_seen + min(num_accepted, length - 1)


def test_all_requests_of_a_depth_go_through_one_forward_and_rounds_stop_when_none_grows() -> None:
    bench = DraftBench()
    lengths = (3, 5, 7)
    states = [bench.chain(request_of(8 + seed, seed), length)[1] for seed, length in enumerate(lengths)]
    trees = bench.ask(*states)
    assert [batch.num_segments for batch in bench.model.batches] == [3, 3, 3, 2, 2, 1, 1]
    assert [batch.num_tokens for batch in bench.model.batches] == [8 + 9 + 10, 3, 3, 2, 2, 1, 1]
    assert [tree.num_drafted for tree in trees] == [3, 5, 7]
    assert all(state.take_cost().seconds > 0 for state in states)
    assert all(state.take_cost().seconds == 0 for state in states)


def test_a_sequence_with_more_to_read_than_a_forward_takes_gets_no_tree_yet() -> None:
    bench = DraftBench(most_rows=64)
    request = request_of(2 * 64 + 5)
    _, state = bench.chain(request, 4)
    for expected in (0, 0, 4):
        [tree] = bench.ask(state)
        assert tree.num_drafted == expected
        assert tree.tokens[0] == request.tokens[-1]
        assert_rows_are_of_the_tokens([state])
    assert length_of(state) == request.num_tokens


def test_a_prompt_that_goes_on_is_followed_without_a_tree() -> None:
    bench = DraftBench()
    _, state = bench.chain(request_of(40), 4)
    bench.follow(state, 32)
    assert length_of(state) == 32
    assert [batch.num_tokens for batch in bench.model.batches] == [32]
    assert len(bench.model.batches[0].logit_rows_R) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("attention", ["exact", "sdpa"])
def test_after_every_step_the_draft_model_holds_the_first_tokens_of_each_request(
    attention: str, temperature: float
) -> None:
    bench = DraftBench(attention)
    generator = np.random.default_rng(3)
    drafters, states = zip(
        *[bench.drafter(request_of(11 + 9 * seed, seed, temperature), WIDE) for seed in range(3)], strict=True
    )
    num_kept = num_dropped = num_scattered = 0
    for _ in range(8):
        for state, drafter, tree in zip(states, drafters, bench.ask(*states), strict=True):
            tree.check_integrity()
            verdict = verdict_on(tree, int(generator.integers(0, 5)))
            before = length_of(state)
            state.request.extend(verdict.tokens)
            drafter.observe(tree, verdict, None)
            kept = length_of(state) - before
            num_kept, num_dropped = num_kept + kept, num_dropped + tree.num_drafted - kept
            num_scattered += bool((np.diff(verdict.path) > 1).any()) and kept > 1
            assert before <= length_of(state) < state.request.num_tokens
        assert_rows_are_of_the_tokens(states, attention)
    assert num_kept > 5
    assert num_dropped > 5
    assert num_scattered > 2


def test_what_requests_have_in_common_is_read_once_also_when_they_start_together() -> None:
    bench = DraftBench()
    states = [bench.chain(request_of(70), 2)[1] for _ in range(3)]
    trees = bench.ask(*states)
    assert bench.model.batches[0].num_tokens == 70 + 2 * (70 - 4 * BLOCK_LEN)
    assert_rows_are_of_the_tokens(states)
    _, late = bench.chain(request_of(70), 2)
    before = bench.num_rows
    trees += bench.ask(late)
    assert bench.num_rows - before == 70 - 4 * BLOCK_LEN + 1  # and a node of the tree
    assert_rows_are_of_the_tokens([late])
    assert len({tuple(tree.tokens) for tree in trees}) == 1


def test_who_gave_its_blocks_back_reads_again_what_others_have_overwritten_and_no_more() -> None:
    bench = DraftBench()
    _, state = bench.chain(request_of(70), 2)
    [tree] = bench.ask(state)
    bench.release(state)
    assert bench.pool.num_held == 0
    before = bench.num_rows
    [again] = bench.ask(state)
    assert bench.num_rows - before == 70 - 4 * BLOCK_LEN + 1
    bench.release(state)
    other = bench.pool.open()
    has_room = bench.pool.resize(other, bench.pool.num_blocks * BLOCK_LEN)
    assert has_room
    bench.pool.release(other)
    before = bench.num_rows
    [afresh] = bench.ask(state)
    assert bench.num_rows - before == 70 + 1
    assert_rows_are_of_the_tokens([state])
    assert tree.tokens.tolist() == again.tokens.tolist() == afresh.tokens.tolist()
