"""The noise is a pure function, the same on every path, and really Gumbel."""

import numpy as np
import pytest
import torch
from scipy import stats

from decoding.kernels.cpu.sampling.noise import (
    MAX_NOISE,
    fill_words,
    gumbel,
    gumbel_of_word,
    gumbel_rows,
    noise_bound,
    philox_words,
)

SEED = 0xDEADBEEFCAFEF00D


def as_signed(seed: int) -> int:
    return seed - 2**64 if seed >= 2**63 else seed


def test_philox_agrees_with_the_published_known_answer() -> None:
    # Random123's kat_vectors: philox4x32-10 with zero counter and zero key
    words = [int(word) for word in philox_words(np.uint64(0), 0, 0)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]


def test_single_tokens_and_whole_rows_draw_the_same_noise() -> None:
    positions = [0, 1, 77, 100_000]
    rows = gumbel_rows(torch.tensor([as_signed(SEED)] * 4), torch.tensor(positions), 103).numpy()
    for row, position in zip(rows, positions, strict=True):
        singles = [gumbel(np.uint64(SEED), position, token) for token in range(103)]
        np.testing.assert_allclose(row, singles, rtol=1e-14)


def test_words_of_many_tokens_are_those_of_each() -> None:
    words = np.empty(40, np.uint32)
    fill_words(words, np.uint64(SEED), 77, 5)
    assert words.reshape(10, 4).tolist() == [list(philox_words(np.uint64(SEED), 77, 5 + place)) for place in range(10)]


def test_noise_follows_the_gumbel_law() -> None:
    noise = gumbel_rows(torch.tensor([7]), torch.tensor([3]), 200_000)[0].numpy()
    assert stats.kstest(noise, "gumbel_r").pvalue > 0.01


@pytest.mark.parametrize("change", ["seed", "position", "token"])
def test_neighbouring_counters_are_uncorrelated(change: str) -> None:
    positions = torch.arange(4096)
    base = gumbel_rows(torch.full((4096,), 11), positions, 8).numpy()
    if change == "seed":
        other = gumbel_rows(torch.full((4096,), 12), positions, 8).numpy()
    elif change == "position":
        other = np.roll(base, 1, axis=0)
    else:
        other = np.roll(base, 1, axis=1)
    assert abs(np.corrcoef(base.ravel(), other.ravel())[0, 1]) < 0.02


def test_the_bound_is_the_largest_word() -> None:
    assert gumbel_of_word(np.uint64(2**32 - 1)) == pytest.approx(MAX_NOISE, rel=1e-6)
    assert gumbel_of_word(np.uint64(2**32 - 1)) <= MAX_NOISE + 1e-6


def test_a_word_is_bounded_from_above_and_closely_where_its_noise_is_high() -> None:
    near = [end + step for end in 2 ** np.arange(33) for step in range(-40, 41)]  # where leading zeros and ones change
    words = np.array(sorted({word % 2**32 for end in near for word in (end, -end)}), np.uint64)
    words = np.append(words, np.random.default_rng(0).integers(0, 2**32, 20_000, np.uint64))
    noise = np.array([gumbel_of_word(word) for word in words])
    margin = np.array([noise_bound(np.uint32(word)) for word in words]) - noise
    assert margin.min() > 5e-4, "what remains for the rounding of scores"
    assert margin[(noise > 3.0) & (noise < 15.0)].max() < 0.1
