"""The sampler draws from the law that was asked for, and a row's token depends on that row alone."""

import numpy as np
import pytest
import torch
from scipy import stats

from decoding.request import Request, SamplingParams, SpeculationParams
from decoding.sampling import (
    UNREACHED,
    SampleRows,
    TreeRows,
    ban,
    choose,
    reference_choose,
    sample_rows,
    top_tokens,
)
from decoding.tree import DraftTree, Source, chain

SETTINGS = {
    "greedy": (0.0, 0, 1.0, 0.0),
    "temperature": (0.7, 0, 1.0, 0.0),
    "hot": (5.0, 0, 1.0, 0.0),
    "top_p": (0.8, 0, 0.9, 0.0),
    "tight_top_p": (1.0, 0, 0.05, 0.0),
    "top_k": (1.0, 7, 1.0, 0.0),
    "top_k_1": (1.0, 1, 1.0, 0.0),
    "min_p": (1.0, 0, 1.0, 0.1),
    "all": (1.3, 20, 0.8, 0.02),
}


def rows_of(setting: tuple[float, int, float, float], count: int, seed: int = 5) -> SampleRows:
    temperature, top_k, top_p, min_p = setting
    return SampleRows(
        row=np.arange(count),
        temperature=np.full(count, temperature),
        top_k=np.full(count, top_k, np.int64),
        top_p=np.full(count, top_p),
        min_p=np.full(count, min_p),
        seed=np.full(count, seed, np.uint64),
        position=np.arange(count, dtype=np.int64),
        token=np.zeros(count, np.int32),
        parent=np.full(count, -1, np.int32),
    )


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("vocab_size", [3, 50, 4001])
def test_kernel_and_reference_choose_the_same_tokens(
    setting: tuple[float, int, float, float], vocab_size: int
) -> None:
    torch.manual_seed(vocab_size)
    logits = torch.randn(64, vocab_size) * 3
    logits[::2] = (logits[::2] * 2).round() / 2  # many exact ties
    rows = rows_of(setting, 64)
    np.testing.assert_array_equal(choose(logits, rows), reference_choose(logits, rows))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_row_is_drawn_the_same_alone_and_in_a_batch(setting: tuple[float, int, float, float]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 300) * 3
    rows = rows_of(setting, 9)
    together = choose(logits, rows)
    for r in range(9):
        alone = rows_of(setting, 1)
        alone.position[0] = r
        assert choose(logits[r : r + 1], alone)[0] == together[r]


@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "all"])
def test_the_law_is_the_one_asked_for(name: str) -> None:
    torch.manual_seed(1)
    temperature, top_k, top_p, min_p = SETTINGS[name]
    logits = torch.randn(1, 12)
    law = torch.softmax(logits[0].double() / temperature, -1).numpy()
    order = np.argsort(-law)
    kept = np.ones(12, bool)
    kept[order[top_k:] if top_k else []] = False
    mass = np.cumsum(law[order] * kept[order]) - law[order]
    if top_p < 1:
        kept[order[mass >= top_p * law[kept].sum()]] = False
    kept &= law >= min_p * law.max()
    law = np.where(kept, law, 0) / law[kept].sum()
    draws = choose(logits.expand(40_000, -1).contiguous(), rows_of(SETTINGS[name], 40_000, seed=9))
    counts = np.bincount(draws, minlength=12)
    assert counts[law == 0].sum() == 0
    assert stats.chisquare(counts[law > 0], law[law > 0] * len(draws)).pvalue > 0.001


def test_rows_that_the_walk_cannot_reach_are_not_drawn() -> None:
    logits = torch.eye(5)[[3, 1, 2, 4]]  # greedy choices 3, 1, 2, 4
    rows = rows_of(SETTINGS["greedy"], 4)
    rows.token[:] = [0, 3, 9, 1]
    rows.parent[:] = [-1, 0, 0, 1]
    np.testing.assert_array_equal(choose(logits, rows), [3, 1, UNREACHED, 4])


def test_top_tokens_are_the_most_likely_with_their_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.randn(6, 5000) * 4
    top = top_tokens(logits, 10)
    expected = torch.softmax(logits.double(), -1).topk(10)
    np.testing.assert_array_equal(top.ids, expected.indices.numpy())
    np.testing.assert_allclose(top.probabilities, expected.values.numpy(), rtol=1e-4)


def test_more_top_tokens_than_vocabulary_gives_the_vocabulary() -> None:
    assert top_tokens(torch.randn(2, 3), 10).ids.shape == (2, 3)


def request_of(prompt_len: int, **sampling: float) -> Request:
    return Request(
        id="r",
        prompt=np.zeros(prompt_len, np.int32),
        sampling=SamplingParams(**{"max_tokens": 9, **sampling}),  # type: ignore[arg-type]
        speculation=SpeculationParams(),
        eos_token_ids=frozenset({1}),
    )


def test_banned_tokens_are_never_drawn_before_min_tokens() -> None:
    request = request_of(4, min_tokens=2, temperature=0.0, stop_token_ids=(3,))
    tree = chain(0, np.array([0, 0], np.int32), Source.CONTEXT)
    logits = torch.tensor([[0.0, 5.0, 1.0, 4.0]]).repeat(4, 1)
    ban(logits, TreeRows(request, tree, 1), tree.depths())
    # row 0 is another request's; nodes of depth 0 and 1 may not end the reply, the node of depth 2 may
    assert logits.argmax(-1).tolist() == [1, 2, 2, 1]


def test_rows_of_several_trees_keep_their_own_settings_and_parents() -> None:
    tree = DraftTree(np.array([7, 1, 2], np.int32), np.array([-1, 0, 0], np.int32), np.zeros(3, np.int8))
    parts = [
        TreeRows(request_of(5, temperature=0.5, seed=2**64 - 1), tree, 0),
        TreeRows(request_of(9, temperature=0.0, top_k=3), tree, 4),
    ]
    rows = sample_rows(parts, positions_N=np.array([4, 5, 5, 99, 8, 9, 9]))
    assert rows.row.tolist() == [0, 1, 2, 4, 5, 6]
    assert rows.parent.tolist() == [-1, 0, 0, -1, 3, 3]
    assert rows.position.tolist() == [5, 6, 6, 9, 10, 10]
    assert rows.temperature.tolist() == [0.5] * 3 + [0.0] * 3
    assert rows.top_k.tolist() == [0] * 3 + [3] * 3
    assert rows.seed.tolist() == [2**64 - 1] * 3 + [0] * 3
