"""The replies of a session: where the end of a text occurred in them, also when the oldest are being forgotten."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from decoding.stores.suffixes import MOST_COMPARED, SuffixIndex, append_all, find_longest, next_position, place_of


def longest(replies: list[list[int]], text: list[int]) -> tuple[int, Counter[int]]:
    """By brute force: how many of the text's last tokens occur with a token after them, and how often which."""
    best, after = 0, Counter[int]()
    for reply in replies:
        for end in range(len(reply) - 1):
            length = 0
            while length <= end and length < len(text) and reply[end - length] == text[-1 - length]:
                length += 1
            if length > best:
                best, after = length, Counter()
            if length == best > 0:
                after[reply[end + 1]] += 1
    return best, after


def check(index: SuffixIndex, replies: list[list[int]], text: list[int]) -> int:
    position, length = find_longest(index.arrays, np.array(text, np.int32))
    expected, after = longest(replies, text)
    assert length == expected
    if length:
        found = int(index.arrays.tokens[place_of(index.arrays, next_position(index.arrays, position))])
        ((token, count),) = after.most_common(1)
        assert found == token if 2 * count > after.total() else found in after
    return length


@pytest.mark.parametrize("alphabet", [3, 12])
def test_the_longest_match_is_found(alphabet: int) -> None:
    random = np.random.default_rng(alphabet)
    index, replies, num_found = SuffixIndex(2**20), [], 0
    for _ in range(MOST_COMPARED // 8):  # so few tokens that every place is looked at
        replies.append(random.integers(0, alphabet, 8).tolist())
        index.extend(np.array(replies[-1], np.int32), -1)
        for _ in range(40):
            num_found += check(index, replies, random.integers(0, alphabet, 6).tolist()) > 1
    assert num_found > 10


def test_a_run_of_one_token_goes_on() -> None:
    """Of all the places within it that share as many tokens, the last goes on otherwise and the first the longest."""
    index, run = SuffixIndex(2**20), [5] * 20
    index.extend(np.array([*run, 6], np.int32), -1)
    for length in range(1, 20):
        position, num_shared = find_longest(index.arrays, np.array([4, *run[:length]], np.int32))
        assert (position, num_shared) == (length - 1 if length < 19 else 19, length)


def test_replies_that_grow_side_by_side_stay_apart() -> None:
    index, lasts = SuffixIndex(2**20), [-1, -1]
    for token in range(400):
        for place, reply in enumerate(lasts):
            lasts[place] = index.extend(np.array([1000 * place + token], np.int32), reply)
    assert check(index, [list(range(400)), list(range(1000, 1400))], [7, 1008, 1009, 1010]) == 3


def test_a_ring_that_has_forgotten_grows_and_holds_what_it_held() -> None:
    index, small = SuffixIndex(2**20), SuffixIndex(0)
    num_places = len(index.arrays.tokens)
    last = append_all(index.arrays, np.arange(num_places + 40, dtype=np.int32), -1)  # more than there is room for
    index.reserve(1)
    assert len(index.arrays.tokens) > num_places
    index.extend(np.array([9000], np.int32), last)
    held = list(range(40, num_places + 40))
    assert check(index, [[*held, 9000]], [num_places + 38, num_places + 39]) == 2
    assert check(index, [[*held, 9000]], held[:3]) == 3
    assert check(index, [[*held, 9000]], [39, 40, 41]) == 2, "39 is forgotten"
    for token in range(10):
        small.extend(np.array([token], np.int32), -1)
        assert small.is_sound(10)
