"""A walk gives every row the bits of its own path, and the compiled kernel computes what plain torch does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.kv_cache import KvCache
from decoding.cache.kv_store import KvStore
from decoding.cache.state_pool import SequenceState, StateShape
from decoding.core.tree import IntArray
from decoding.model.state.rule_rows import RuleRows
from decoding.model.state.walk import CompiledWalk, Job, ReferenceWalk, chain_walk, fits, walk_of

HEADS, KEYS, WIDTH = 4, 8, 48
SHAPE = StateShape(windows=((3, 8),), matrices=((HEADS, KEYS, WIDTH),))
# Groups of heads that share keys, widths of a decay, and whether the delta rule corrects.
RULES = {
    "gated delta rule": (2, 1, 1, True),
    "kimi": (4, KEYS, 1, True),
    "mamba 2": (2, 1, 1, False),
    "mamba 1": (1, KEYS, WIDTH, False),
}


class Carried:
    """Stands for a model whose layers carry a state, for packing."""

    shape = SHAPE

    def commit(self, state: SequenceState, path: IntArray) -> None:
        state.pool.advance(state, len(path))


def random_tree(generator: np.random.Generator, num_certain: int, num_rows: int) -> IntArray:
    """Parents: a chain of certain rows, and then candidates below its last."""
    parents = [place - 1 for place in range(num_certain)]
    parents += [int(generator.integers(num_certain - 1, place)) for place in range(num_certain, num_rows)]
    return np.array(parents, np.int32)


def batch_of(trees: list[tuple[IntArray, int]]) -> StepBatch:
    store = KvStore([], 64, torch.float32, torch.device("cpu"), Carried())
    cache = KvCache(store)
    segments = [
        Segment(cache.new_rows(len(parents)), np.zeros(len(parents), np.int32), parents, num_certain=num_certain)
        for parents, num_certain in trees
    ]
    return pack(segments, store)


def random_rows(rule: str, num_rows: int) -> RuleRows:
    groups, decay_keys, decay_values, has_rate = RULES[rule]
    generator = torch.Generator().manual_seed(num_rows)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    key = draw(num_rows, groups, KEYS)
    return RuleRows(
        draw(num_rows, groups, KEYS),
        key / key.norm(dim=-1, keepdim=True),
        draw(num_rows, HEADS, WIDTH),
        draw(num_rows, HEADS, decay_keys, decay_values).sigmoid(),
        draw(num_rows, HEADS).sigmoid() if has_rate else None,
    )


def path_to(parents: IntArray, row: int) -> list[int]:
    path: list[int] = []
    while row >= 0:
        path.append(row)
        row = int(parents[row])
    return path[::-1]


@pytest.mark.parametrize("walk", [ReferenceWalk(), CompiledWalk()])
@pytest.mark.parametrize("rule", RULES)
def test_a_tree_row_has_the_bits_of_its_own_path(rule: str, walk: ReferenceWalk | CompiledWalk) -> None:
    generator = np.random.default_rng(0)
    trees = [(random_tree(generator, certain, size), certain) for certain, size in ((1, 12), (5, 5), (3, 20), (1, 1))]
    batch = batch_of(trees)
    rows = random_rows(rule, batch.num_tokens)
    fronts = [torch.randn(SHAPE.matrices[0]) for _ in trees]
    for (state, _), front in zip(batch.carried, fronts, strict=True):
        state.back.matrices[0].copy_(front)
        state.pool.advance(state, 1)
    step = walk_of(batch)
    assert sorted(step.walk[:, 0].tolist()) == list(range(batch.num_tokens))
    places = [state.matrices[0] for state in step.states]
    [out_NHV] = walk.run([Job(rows, places)], step.walk, step.num_scratch)
    for place, (parents, num_certain) in enumerate(trees):
        first = int(batch.offsets[place])
        assert torch.equal(batch.carried[place].state.front.matrices[0], fronts[place]), "a forward changes no state"
        for row in range(len(parents)):
            path = np.array(path_to(parents, row), np.int64) + first
            state_HKV = fronts[place].clone()
            [alone_NHV] = walk.run([Job(rows, [state_HKV])], chain_walk(path))
            assert torch.equal(out_NHV[first + row], alone_NHV[first + row])
            if row == num_certain - 1:
                assert torch.equal(batch.carried[place].state.back.matrices[0], state_HKV)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_the_kernel_computes_what_plain_torch_does(rule: str, num_threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        rows = [random_rows(rule, 40), random_rows(rule, 41)]
        walk = chain_walk(np.arange(40))
        expected = [torch.zeros(SHAPE.matrices[0]) for _ in rows]
        states = [torch.zeros(SHAPE.matrices[0]) for _ in rows]
        outs = ReferenceWalk().run([Job(*job) for job in zip(rows, ([each] for each in expected), strict=True)], walk)
        found = CompiledWalk().run([Job(*job) for job in zip(rows, ([each] for each in states), strict=True)], walk)
        for one, other in zip([*outs, *expected], [*found, *states], strict=True):
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-5)
    finally:
        torch.set_num_threads(before)


def test_a_path_of_branches_needs_a_scratch_state_for_each_and_a_chain_one() -> None:
    chain = np.arange(-1, 11, dtype=np.int32)
    assert walk_of(batch_of([(chain, 1)])).num_scratch == 1
    comb = np.array([-1, 0, 0, 1, 1, 3, 3, 5, 5], np.int32)  # two children for each first child
    assert walk_of(batch_of([(comb, 1)])).num_scratch == 4
    assert walk_of(batch_of([(chain, 12)])).num_scratch == 0


def test_a_convolution_reads_its_ancestors_and_before_them_the_window() -> None:
    batch = batch_of([(np.array([-1, 0, 0, 2, 3], np.int32), 1), (np.array([-1, 0], np.int32), 2)])
    inputs = walk_of(batch).inputs(3)
    windows, rows = [[0, 1, 2], [3, 4, 5]], [6, 7, 8, 9, 10, 11, 12]
    assert inputs[0].tolist() == [rows[0], windows[0][2], windows[0][1], windows[0][0]]
    assert inputs[1].tolist() == [rows[1], rows[0], windows[0][2], windows[0][1]]
    assert inputs[4].tolist() == [rows[4], rows[3], rows[2], rows[0]]
    assert inputs[6].tolist() == [rows[6], rows[5], windows[1][2], windows[1][1]]


def test_the_kernel_takes_states_of_whole_vectors() -> None:
    assert fits([(4, 8, 48), (1, 3, 16)])
    assert not fits([(4, 8, 12)])
