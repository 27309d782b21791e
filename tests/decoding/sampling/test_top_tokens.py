"""The most likely tokens of a row, with their probabilities."""

import numpy as np
import torch

from decoding.sampling.top_tokens import top_tokens


def test_top_tokens_are_the_most_likely_with_their_probabilities() -> None:
    torch.manual_seed(2)
    logits = torch.randn(6, 5000) * 4
    top = top_tokens(logits, 10)
    expected = torch.softmax(logits.double(), -1).topk(10)
    np.testing.assert_array_equal(top.ids, expected.indices.numpy())
    np.testing.assert_allclose(top.probabilities, expected.values.numpy(), rtol=1e-4)


def test_more_top_tokens_than_vocabulary_gives_the_vocabulary() -> None:
    assert top_tokens(torch.randn(2, 3), 10).ids.shape == (2, 3)
