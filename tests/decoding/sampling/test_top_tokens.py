"""The most likely tokens of a row, with their probabilities."""

import numpy as np
import pytest
import torch

from decoding.sampling.top_tokens import BLOCK, PARALLEL_LOGITS, top_tokens

INFINITY = float("inf")


def test_top_tokens_are_the_most_likely_with_their_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.randn(6, 5000) * 4
    top = top_tokens(logits, 10)
    expected = torch.softmax(logits.double(), -1).topk(10)
    np.testing.assert_array_equal(top.ids, expected.indices.numpy())
    np.testing.assert_allclose(top.probabilities, expected.values.numpy(), rtol=1e-4)


def test_more_top_tokens_than_vocabulary_gives_the_vocabulary() -> None:
    assert top_tokens(torch.randn(2, 3), 10).ids.shape == (2, 3)


@pytest.mark.parametrize("vocab_size", [BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 3, 4096])
def test_of_equally_likely_tokens_the_lowest_ids_come_first(vocab_size: int) -> None:
    torch.manual_seed(3)
    coarse = (torch.randn(6, vocab_size) * 2).round()
    rows = torch.cat([coarse, coarse.sort().values, coarse.sort(descending=True).values, torch.zeros(1, vocab_size)])
    rows[1, ::3] = -INFINITY
    expected = np.argsort(-rows.numpy(), axis=1, kind="stable")[:, :8]
    np.testing.assert_array_equal(top_tokens(rows, 8).ids, expected)


def test_zeros_of_either_sign_are_equal_and_a_nan_is_no_token() -> None:
    rows = torch.full((2, 300), -1.0)
    rows[0, 100], rows[0, 200] = -0.0, 0.0
    rows[1, 7], rows[1, 140], rows[1, 150] = float("nan"), 5.0, -float("nan")
    assert top_tokens(rows, 2).ids[0].tolist() == [100, 200]
    assert top_tokens(rows, 2).ids[1].tolist() == [140, 0]


def test_a_row_with_too_few_possible_tokens_is_filled_up() -> None:
    rows = torch.full((1, 300), -INFINITY)
    rows[0, 170] = 2.0
    top = top_tokens(rows, 3)
    assert top.ids.tolist() == [[170, 0, 0]]
    assert top.probabilities.tolist() == [[1.0, 0.0, 0.0]]


def test_many_rows_at_once_are_what_each_is_alone() -> None:
    torch.manual_seed(4)
    rows = torch.randn(40, 20000)
    assert rows.numel() > PARALLEL_LOGITS
    top = top_tokens(rows, 8)
    for place in range(len(rows)):
        alone = top_tokens(rows[place : place + 1], 8)
        np.testing.assert_array_equal(top.ids[place], alone.ids[0])
        np.testing.assert_array_equal(top.probabilities[place], alone.probabilities[0])
