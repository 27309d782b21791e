"""The sampler draws from the law that was asked for, and a row's token depends on that row alone."""

import numpy as np
import pytest
import torch
from scipy import stats

from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.tree import DraftTree, root_only
from decoding.sampling.sampling import UNREACHED, TreeRows, choose, reference_choose, top_tokens
from decoding.sampling.verify import walk

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


def request_of(prompt_len: int = 1, **sampling: float) -> Request:
    return Request(
        id="r",
        prompt=np.zeros(prompt_len, np.int32),
        sampling=SamplingParams(**{"max_tokens": 9, **sampling}),  # type: ignore[arg-type]
        speculation=SpeculationParams(),
        eos_token_ids=frozenset({1}),
    )


def plain_rows(setting: tuple[float, int, float, float], count: int, seed: int = 5) -> list[TreeRows]:
    """`count` plain steps of like requests, at positions 1, 2, 3 ..."""
    temperature, top_k, top_p, min_p = setting
    asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    return [TreeRows(request_of(place + 1, **asked), root_only(0), place) for place in range(count)]


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.parametrize("vocab_size", [3, 50, 4001])
def test_kernel_and_reference_choose_the_same_tokens(setting: tuple[float, int, float, float], vocab_size: int) -> None:
    torch.manual_seed(vocab_size)
    logits = torch.randn(64, vocab_size) * 3
    logits[::2] = (logits[::2] * 2).round() / 2  # many exact ties
    rows = plain_rows(setting, 64)
    np.testing.assert_array_equal(choose(logits, rows), reference_choose(logits, rows))


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_a_row_is_drawn_the_same_alone_and_in_a_batch(setting: tuple[float, int, float, float]) -> None:
    torch.manual_seed(0)
    logits = torch.randn(9, 300) * 3
    rows = plain_rows(setting, 9)
    together = choose(logits, rows)
    for row, chosen in zip(rows, together, strict=True):
        assert choose(logits, [row])[0] == chosen


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
    rows = plain_rows(SETTINGS[name], 20_000, seed=9)
    draws = np.concatenate(choose(logits.expand(20_000, -1).contiguous(), rows))
    counts = np.bincount(draws, minlength=12)
    assert counts[law == 0].sum() == 0
    assert stats.chisquare(counts[law > 0], law[law > 0] * len(draws)).pvalue > 0.001


TREE = DraftTree(  # 0 -> {3 -> {1 -> 2}, 9}
    np.array([0, 3, 9, 1, 2], np.int32), np.array([-1, 0, 0, 1, 3], np.int32), np.zeros(5, np.int8)
)


def test_nodes_that_the_walk_cannot_reach_are_not_drawn() -> None:
    logits = torch.eye(10)[[3, 1, 5, 4, 7]]  # greedy choices
    (chosen,) = choose(logits, [TreeRows(request_of(temperature=0.0), TREE, 0)])
    np.testing.assert_array_equal(chosen, [3, 1, UNREACHED, 4, UNREACHED])


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS.keys())
def test_several_trees_are_drawn_as_the_reference_draws_them(setting: tuple[float, int, float, float]) -> None:
    temperature, top_k, top_p, min_p = setting
    reached = 0
    for seed in range(40):
        torch.manual_seed(seed)
        logits = torch.randn(12, 10)
        asked = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": 2**64 - 1 - seed}
        trees = [TreeRows(request_of(4, **asked), TREE, 1), TreeRows(request_of(9, temperature=0.0), TREE, 7)]
        for part, ours, theirs in zip(trees, choose(logits, trees), reference_choose(logits, trees), strict=True):
            np.testing.assert_array_equal(ours[ours != UNREACHED], theirs[ours != UNREACHED])
            assert walk(part.tree, ours).tokens.tolist() == walk(part.tree, theirs).tokens.tolist()
            reached += int((ours != UNREACHED).sum())
    assert reached > 90


def test_top_tokens_are_the_most_likely_with_their_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.randn(6, 5000) * 4
    top = top_tokens(logits, 10)
    expected = torch.softmax(logits.double(), -1).topk(10)
    np.testing.assert_array_equal(top.ids, expected.indices.numpy())
    np.testing.assert_allclose(top.probabilities, expected.values.numpy(), rtol=1e-4)


def test_more_top_tokens_than_vocabulary_gives_the_vocabulary() -> None:
    assert top_tokens(torch.randn(2, 3), 10).ids.shape == (2, 3)
