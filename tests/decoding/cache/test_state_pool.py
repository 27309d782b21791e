"""The pool of states: random operations keep its invariants, and nothing that is shared is ever written."""

from __future__ import annotations

import random

import numpy as np
import torch

from decoding.cache.block_pool import BLOCK_LEN, BlockPool
from decoding.cache.prefix_index import PrefixIndex
from decoding.cache.state_pool import SequenceState, StatePool, StateShape
from decoding.process.machine import resident_bytes

SHAPE = StateShape(windows=((3, 8),), matrices=((2, 4, 16),))


def new_pool(max_checkpoints: int = 0) -> StatePool:
    return StatePool(SHAPE, torch.float32, torch.device("cpu"), max_checkpoints)


def run(state: SequenceState, number: float) -> None:
    """What a forward does: write what comes after the state, and after each mark."""
    for mark in state.marks:
        mark.state.matrices[0].fill_(number)
    state.back.matrices[0].fill_(number)


def value(state: SequenceState) -> float:
    return float(state.front.matrices[0].max())


def test_a_state_has_the_bytes_that_its_shape_says() -> None:
    assert SHAPE.num_bytes(torch.float32) == 4 * 3 * 8 + 4 * 2 * 4 * 16
    assert SHAPE.num_bytes(torch.bfloat16) == 2 * 3 * 8 + 4 * 2 * 4 * 16


def test_states_take_the_memory_that_the_pool_tells() -> None:
    shape = StateShape(windows=((3, 1 << 15),), matrices=((16, 128, 128),))
    pool = StatePool(shape, torch.float32, torch.device("cpu"), 20)
    before = resident_bytes()
    for place in range(20):
        state = pool.open()
        pool.mark(state, 16, bytes([place]))
        written = [state.back, state.marks[0].state]
        pool.advance(state, 20)
        for each in (*written, state.back):
            for part in (*each.windows, *each.matrices):
                part.fill_(1.0)
    assert pool.num_made == 60
    assert resident_bytes() - before <= 1.05 * pool.num_bytes, "less where the process had memory to spare"


def test_a_sequence_begins_with_zeros_and_goes_on_to_what_its_step_wrote() -> None:
    pool = new_pool()
    one, other = pool.open(), pool.open()
    run(one, 1.0)
    assert value(one) == 0.0
    pool.advance(one, 5)
    assert (value(one), value(other)) == (1.0, 0.0)
    pool.check_integrity()


def test_who_goes_on_from_another_writes_nothing_of_it() -> None:
    pool = new_pool()
    one = pool.open()
    run(one, 1.0)
    pool.advance(one, 1)
    other = pool.fork(one)
    for state, number in ((one, 2.0), (other, 3.0)):
        run(state, number)
        pool.advance(state, 1)
    assert (value(one), value(other)) == (2.0, 3.0)
    pool.check_integrity()


def test_a_checkpoint_is_found_by_its_tokens_and_outlives_who_made_it() -> None:
    pool = new_pool(4)
    one = pool.open()
    pool.mark(one, 16, b"sixteen")
    assert not pool.knows(b"sixteen")
    run(one, 1.0)
    pool.advance(one, 20)
    run(one, 2.0)
    pool.advance(one, 1)
    pool.release(one)
    other = pool.open()
    pool.adopt(other, b"sixteen")
    assert value(other) == 1.0
    pool.check_integrity()


def test_a_step_that_ends_at_its_checkpoint_goes_on_from_it() -> None:
    pool = new_pool(4)
    one = pool.open()
    pool.mark(one, 16, b"sixteen")
    one.marks[0].state.matrices[0].fill_(1.0)
    pool.advance(one, 16)
    assert value(one) == 1.0
    run(one, 2.0)
    pool.advance(one, 1)
    other = pool.open()
    pool.adopt(other, b"sixteen")
    assert (value(one), value(other)) == (2.0, 1.0)
    pool.check_integrity()


def test_checkpoints_make_way_for_new_ones_the_least_recently_used_first() -> None:
    pool = new_pool(2)
    for digest in (b"a", b"b", b"a", b"c"):
        one = pool.open()
        pool.mark(one, 16, digest)
        run(one, 1.0)
        pool.advance(one, 20)
        pool.release(one)
        pool.check_integrity()
    assert [pool.knows(digest) for digest in (b"a", b"b", b"c")] == [True, False, True]
    pool.forget()
    assert not pool.knows(b"a")


def test_spare_checkpoints_take_no_place_of_others_and_go_first() -> None:
    pool = new_pool(3)

    def known_after(digests: bytes, is_spare: bool) -> bytes:
        for digest in digests:
            one = pool.open()
            pool.mark(one, 16, bytes([digest]), is_spare)
            pool.advance(one, 20)
            pool.release(one)
            pool.check_integrity()
        return bytes(digest for digest in b"abcdwxyz" if pool.knows(bytes([digest])))

    assert known_after(b"a", False) == b"a"
    assert known_after(b"wxyz", True) == b"ayz"
    pool.adopt(pool.open(), b"y")  # now one that somebody wants
    assert known_after(b"b", False) == b"aby"
    assert known_after(b"x", True) == b"aby"
    assert known_after(b"c", False) == b"bcy"


def test_random_operations_keep_every_invariant_and_every_state() -> None:
    draw, pool = random.Random(0), new_pool(3)
    running: list[tuple[SequenceState, list[float]]] = []
    kept: dict[bytes, float] = {}
    most_made, number = 0, 0.0
    for _ in range(2000):
        move = draw.randrange(6)
        if move == 0 and len(running) < 5:
            state, expected = pool.open(), [0.0]
            known = [digest for digest in kept if pool.knows(digest)]
            if known and draw.random() < 0.7:
                digest = draw.choice(known)
                pool.adopt(state, digest)
                expected = [kept[digest]]
            running.append((state, expected))
        elif move == 1 and running and len(running) < 5:
            parent, expected = draw.choice(running)
            running.append((pool.fork(parent), list(expected)))
        elif move == 2 and running:
            state, _ = running.pop(draw.randrange(len(running)))
            if draw.random() < 0.5:  # it fails in the middle of a step
                pool.mark(state, 16, bytes([draw.randrange(8)]), draw.random() < 0.5)
            pool.release(state)
        elif running:
            state, expected = draw.choice(running)
            number += 1.0
            digest, ends_there = bytes([draw.randrange(8)]), draw.random() < 0.3
            is_new = not pool.knows(digest)
            if draw.random() < 0.5:
                pool.mark(state, 16, digest, draw.random() < 0.5)
            is_marked = bool(state.marks)
            run(state, number)
            pool.advance(state, 16 if ends_there else 20)
            if is_marked and is_new:
                kept[digest] = number
            expected[0] = number
        most_made = max(most_made, pool.num_made)
        pool.check_integrity()
        assert all(value(state) == expected[0] for state, expected in running)
    assert most_made <= 2 * 5 + 3


def test_blocks_are_found_up_to_the_last_that_has_a_checkpoint() -> None:
    states = new_pool(4)
    pool = BlockPool(10, PrefixIndex(), states)
    tokens = np.random.default_rng(0).integers(0, 1000, 4 * BLOCK_LEN).astype(np.int32)
    table = pool.open()
    assert pool.resize(table, len(tokens))
    pool.publish(table, tokens)
    assert pool.find(pool.open(), tokens) == 0
    state = states.open()
    states.mark(state, 2 * BLOCK_LEN, table.digests[1])
    run(state, 1.0)
    states.advance(state, 3 * BLOCK_LEN)
    other = pool.open()
    assert pool.find(other, tokens) == 2
    assert other.num_matched == 4
    pool.check_integrity()
    pool.forget()
    assert pool.find(pool.open(), tokens) == 0
