import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.stores.context import MAX_SUFFIX, ContextIndex, ContextMatch


def match(*tokens: int, max_chain: int = 20) -> ContextMatch:
    sequence = np.array(tokens, np.int32)
    index = ContextIndex(len(sequence))
    index.extend(sequence)
    return index.match(sequence, max_chain)


def occurrences(tokens: NDArray[np.int32], ngram: int) -> list[int]:
    """Every earlier position at which the last `ngram` tokens end, by brute force."""
    last = len(tokens) - 1
    return [
        end
        for end in range(ngram - 1, last)
        if np.array_equal(tokens[end - ngram + 1 : end + 1], tokens[last - ngram + 1 :])
    ]


def common_suffix(tokens: NDArray[np.int32], end: int) -> int:
    length = 0
    while length <= end and length < MAX_SUFFIX and tokens[end - length] == tokens[-1 - length]:
        length += 1
    return length


def check_against_brute_force(tokens: NDArray[np.int32], found: ContextMatch, shortest: int) -> bool:
    by_length = {n: occurrences(tokens, n) for n in range(5, shortest - 1, -1) if len(tokens) > n}
    matching = [n for n in sorted(by_length, reverse=True) if by_length[n]]
    if not matching:
        assert len(found.chain) == 0
        assert not found.by_lengths
        assert not found.by_occurrences
        return False
    ends = by_length[matching[0]]
    followers = {int(tokens[end + 1]) for end in ends}
    assert found.by_occurrences == (len(ends) >= 2 and len(followers) == 1)
    best = max(ends[-16:], key=lambda end: (common_suffix(tokens, end), end))
    assert found.suffix_len == common_suffix(tokens, best)
    known = min(len(found.chain), len(tokens) - best - 1)
    assert np.array_equal(found.chain[:known], tokens[best + 1 : best + 1 + known])
    agreeing = [n for n in matching if tokens[by_length[n][-1] + 1] == tokens[best + 1]]
    assert found.by_lengths == (len(agreeing) >= 2)
    return True


@pytest.mark.parametrize("shortest", [1, 2, 3])
def test_an_index_grown_in_steps_equals_a_search_of_the_whole_sequence(shortest: int) -> None:
    random = np.random.default_rng(0)
    num_matches = 0
    for alphabet in (2, 3, 4, 6, 12):
        tokens = random.integers(0, alphabet, 700).astype(np.int32)
        index = ContextIndex(len(tokens), shortest)
        length = 1
        while length < len(tokens):
            length = min(len(tokens), length + int(random.integers(1, 9)))
            index.extend(tokens[:length])
            num_matches += check_against_brute_force(tokens[:length], index.match(tokens[:length]), shortest)
    assert num_matches > 300


def test_a_repeated_token_is_copied_and_nothing_matches_below_three_tokens() -> None:
    assert match(1, 2, 3, 4, 5, 1, 2, 3, max_chain=4).chain.tolist() == [4, 5, 1, 2]
    assert len(match(1, 2, 3, 9, 2, 3).chain) == 0
    assert len(match(7).chain) == 0


def test_a_copy_that_reaches_the_end_goes_on_as_a_loop() -> None:
    assert match(1, 2, 3, 1, 2, 3, max_chain=8).chain.tolist() == [1, 2, 3, 1, 2, 3, 1, 2]


def test_the_occurrence_sharing_the_longest_suffix_is_copied() -> None:
    long = (9, 8, 7, 6, 5, 4, 3)
    found = match(*long, 100, *long[2:], 200, *long, max_chain=1)
    assert found.chain.tolist() == [100]
    assert found.suffix_len == len(long)
    assert not found.by_occurrences


@pytest.mark.parametrize(
    ("tokens", "by_lengths", "by_occurrences"),
    [
        ((1, 2, 3, 4, 9, 1, 2, 3), False, False),  # one length, one occurrence
        ((1, 2, 3, 4, 5, 9, 1, 2, 3, 4), True, False),  # lengths 3 and 4, one occurrence
        ((1, 2, 3, 9, 5, 1, 2, 3, 9, 6, 1, 2, 3), False, True),  # two occurrences of one length agree
        ((1, 2, 3, 9, 5, 1, 2, 3, 8, 6, 1, 2, 3), False, False),  # two occurrences disagree
        ((7, 1, 2, 3, 4, 6, 1, 2, 3, 5, 7, 1, 2, 3), False, False),  # the 3-gram's latest says otherwise
    ],
)  # fmt: skip
def test_the_two_definitions_of_consensus(tokens: tuple[int, ...], by_lengths: bool, by_occurrences: bool) -> None:
    found = match(*tokens)
    assert (found.by_lengths, found.by_occurrences) == (by_lengths, by_occurrences)
