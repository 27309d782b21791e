"""A team of threads: every piece is done once, phases follow each other, and bits do not depend on who computes."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numba as nb
import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.kernels.cpu.lanes import pointer, raise_counter
from decoding.kernels.cpu.program import SHARE, words_of
from decoding.kernels.cpu.team import Team, team

# The fields of a call: who takes pieces counts them; SOURCE and TARGET are rows of float32 numbers.
COUNTER, NUM_PIECES, SOURCE, TARGET, WIDTH, NUM_RUN = range(6)
Words = NDArray[np.int64]


def _sum_pieces(fields: Any) -> None:
    """Each piece is a sum in its own order: of the source's numbers from the piece's on."""
    call = nb.carray(fields, 6)
    address = np.int64(call.ctypes.data)
    width = call[WIDTH]
    source = nb.carray(pointer(call[SOURCE], np.float32(0)), width)
    target = nb.carray(pointer(call[TARGET], np.float32(0)), width)
    while True:
        piece = raise_counter(address + 8 * COUNTER, 1)
        if piece >= call[NUM_PIECES]:
            return
        total = np.float32(0)
        for place in range(width):
            total = np.float32(0.55) * total + np.float32(0.45) * source[(piece + place) % width]
        target[piece] = total
        raise_counter(address + 8 * NUM_RUN, 1)


@pytest.fixture(scope="module")
def sum_pieces() -> Any:
    return nb.cfunc(SHARE)(_sum_pieces)


@pytest.fixture
def own_team() -> Iterator[Team]:
    made = Team()
    yield made
    made.close()


class Chain:
    """A program in which each phase reads all that the one before has written: 64 numbers, each a piece."""

    WIDTH = 64

    def __init__(self, function: Any, num_phases: int) -> None:
        self.numbers = np.zeros((num_phases + 1, self.WIDTH), np.float32)
        self.numbers[0] = np.random.default_rng(0).random(self.WIDTH, np.float32)
        rows = [row.ctypes.data for row in self.numbers]
        fields = [[0, self.WIDTH, *pair, self.WIDTH, 0] for pair in pairwise(rows)]
        self.fields = np.array(fields, np.int64)
        self.words = words_of([[(function.address, each.ctypes.data)] for each in self.fields])

    def run(self, run: Callable[[int], None]) -> NDArray[np.float32]:
        """The numbers of all phases, each piece of which ran once."""
        self.fields[:, COUNTER] = self.fields[:, NUM_RUN] = 0
        self.numbers[1:] = np.nan
        run(self.words.ctypes.data)
        assert (self.fields[:, NUM_RUN] == self.WIDTH).all(), self.fields[:, NUM_RUN]
        return self.numbers.copy()


@pytest.mark.parametrize("num_threads", [2, 3, 5])
def test_any_number_of_threads_gives_the_same_bits(own_team: Team, sum_pieces: Any, num_threads: int) -> None:
    chain = Chain(sum_pieces, 40)
    expected = chain.run(lambda words: own_team.run(words, 1))
    assert np.isfinite(expected).all()
    for _ in range(30):
        assert np.array_equal(chain.run(lambda words: own_team.run(words, num_threads)), expected)


def test_the_number_of_threads_may_change_with_every_program(own_team: Team, sum_pieces: Any) -> None:
    chain = Chain(sum_pieces, 7)
    expected = chain.run(lambda words: own_team.run(words, 1))
    for num_threads in (4, 2, 1, 3, 2, 4, 1, 2) * 5:
        assert np.array_equal(chain.run(partial(own_team.run, num_threads=num_threads)), expected)


def test_pieces_taken_in_any_order_give_the_same_bits(own_team: Team, sum_pieces: Any) -> None:
    """Pieces of a phase are run one by one, as if each were claimed by another thread, in shuffled orders."""
    chain = Chain(sum_pieces, 5)
    expected = chain.run(lambda words: own_team.run(words, 1))
    rng = np.random.default_rng(1)
    run_one = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(sum_pieces.address)

    def shuffled(_words: int) -> None:
        for fields in chain.fields:
            for piece in rng.permutation(chain.WIDTH):
                fields[COUNTER], fields[NUM_PIECES] = piece, piece + 1
                run_one(fields.ctypes.data)
            fields[NUM_PIECES] = chain.WIDTH

    for _ in range(5):
        assert np.array_equal(chain.run(shuffled), expected)


def test_helpers_that_never_come_are_not_waited_for(sum_pieces: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Team()
    monkeypatch.setattr(alone, "_start_helpers", lambda _count: None)
    chain = Chain(sum_pieces, 20)
    expected = chain.run(lambda words: alone.run(words, 1))
    assert np.array_equal(chain.run(lambda words: alone.run(words, 8)), expected)


def test_a_thread_that_loses_its_core_holds_up_the_phase_by_its_piece_alone(own_team: Team) -> None:
    """Two threads meet in the first phase, where one of them takes a piece and stays; the other does all others."""

    def _meet(fields: Any) -> None:
        """COUNTER 0 of the pieces: whoever takes it waits until all others have run."""
        call = nb.carray(fields, 6)
        address = np.int64(call.ctypes.data)
        while True:
            piece = raise_counter(address + 8 * COUNTER, 1)
            if piece >= call[NUM_PIECES]:
                return
            while piece == 0 and raise_counter(address + 8 * NUM_RUN, 0) < call[NUM_PIECES] - 1:
                pass
            raise_counter(address + 8 * NUM_RUN, 1)

    meet = nb.cfunc(SHARE)(_meet)
    fields = np.array([0, 50, 0, 0, 0, 0], np.int64)
    words = words_of([[(meet.address, fields.ctypes.data)]])
    own_team.run(words.ctypes.data, 2)
    assert fields[NUM_RUN] == 50


def test_while_one_thread_leads_another_runs_its_program_alone(own_team: Team, sum_pieces: Any) -> None:
    chains = [Chain(sum_pieces, 30) for _ in range(4)]
    expected = chains[0].run(lambda words: own_team.run(words, 1))
    results: list[bool] = []

    def work(chain: Chain) -> None:
        for _ in range(50):
            results.append(np.array_equal(chain.run(lambda words: own_team.run(words, 3)), expected))

    threads = [threading.Thread(target=work, args=(chain,)) for chain in chains]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 200


def test_sleeping_threads_are_woken(own_team: Team, sum_pieces: Any) -> None:
    """Programs far apart find the helpers asleep, and phases with one long piece send the others to sleep."""

    def _long(fields: Any) -> None:
        call = nb.carray(fields, 6)
        if raise_counter(np.int64(call.ctypes.data) + 8 * COUNTER, 1) == 0:
            total = 0
            for turn in range(3_000_000):
                total ^= turn * turn + (total >> 3)
            call[NUM_RUN] = total | 1

    long_one = nb.cfunc(SHARE)(_long)
    chain = Chain(sum_pieces, 2)
    expected = chain.run(lambda words: own_team.run(words, 1))
    fields = np.zeros((2, 6), np.int64)
    ends = [row.ctypes.data for row in chain.fields]
    words = words_of(
        [
            [(long_one.address, fields[0].ctypes.data)],
            [(sum_pieces.address, ends[0])],
            [(long_one.address, fields[1].ctypes.data)],
            [(sum_pieces.address, ends[1])],
        ]
    )
    for _ in range(20):
        fields[:] = 0
        assert np.array_equal(chain.run(lambda _: own_team.run(words.ctypes.data, 4)), expected)
        assert (fields[:, NUM_RUN] != 0).all()


def test_a_closed_team_runs_programs_alone(sum_pieces: Any) -> None:
    closed = Team()
    chain = Chain(sum_pieces, 5)
    expected = chain.run(lambda words: closed.run(words, 3))
    helpers = list(closed._helpers)
    closed.close()
    assert len(helpers) == 2
    assert not any(helper.is_alive() for helper in helpers)
    assert np.array_equal(chain.run(lambda words: closed.run(words, 3)), expected)


FORKS = """
import os
import numba as nb
import numpy as np
from decoding.kernels.cpu.program import words_of
from decoding.kernels.cpu.team import team
from tests.decoding.kernels.cpu.test_team import SHARE, Chain, _sum_pieces

chain = Chain(nb.cfunc(SHARE)(_sum_pieces), 5)
expected = chain.run(lambda words: team().run(words, 3))
child = os.fork()
if child == 0:
    same = np.array_equal(chain.run(lambda words: team().run(words, 3)), expected)
    raise SystemExit(0 if same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_a_team_of_its_own_and_both_end() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKS], check=True, timeout=120)


def test_a_process_has_one_team() -> None:
    assert team() is team()


def test_words_say_where_each_phase_begins() -> None:
    assert words_of([[(1, 2), (3, 4)], [(5, 6)]]).tolist() == [2, 4, 8, 10, 1, 2, 3, 4, 5, 6]
