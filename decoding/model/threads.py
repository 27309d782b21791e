"""Chooses the number of threads for a model's forwards by measuring: at start, while the engine is idle, and under
load; never more than the machine allows at the time.

Beside a busy process many steps on several threads take as long as before and a few much longer. Mean times show that;
minimum and median would hide it. Knows nothing of models or clocks: time is the seconds of forwards.
Invariant: torch's operations and numba's loops use the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numba as nb
import torch

from decoding.process.machine import cores

PARAMETERS_PER_THREAD = 10_000_000  # one thread finishes a smaller share before a second one has woken up
SHORTEST_WAIT, LONGEST_WAIT = 0.25, 1.25  # seconds between two trials of a number: doubled with each that fails
TRIAL_SECONDS, TRIAL_STEPS = 0.1, 8  # a trial lasts at least so many seconds, counted in usual times, and steps
LONG_TRIAL_SECONDS, LEAST_STEPS = 0.4, 2  # after so many seconds a trial may have fewer steps
WORTH = 0.9  # another number of threads must take less than this share of the present one's time
# The shares of all time that failed trials of more and of fewer threads may cost, and those after a drift. More have to
# be tried to see that a neighbour is gone; that one has come shows in slower steps.
LOSS_SHARES, DRIFT_SHARE = {1: 0.1, -1: 0.003}, 0.02
LOOK_SECONDS, DRIFT = 0.25, 1.25  # a drift: steps that over so long take so many times what they took, or that part
ASK_SECONDS = 0.5  # of forwards between two questions how many threads the machine allows
NUM_IDLE = 1024  # idle moments between two trials
IDLE_SECONDS = 0.02  # of forwards in an idle moment

Step = Callable[[], float]  # runs a forward, which is passed to `observe`, and returns its seconds


class Usual:
    """The mean seconds of steps by size, of up to some of the latest."""

    NUM_LATEST = 16

    def __init__(self) -> None:
        self._means: dict[int, tuple[float, int]] = {}  # by size class, each a fifth wide: the mean, and of how many

    def add(self, num_rows: int, seconds: float) -> None:
        mean, count = self._means.get(_size_of(num_rows), (0.0, 0))
        count = min(count + 1, self.NUM_LATEST)
        self._means[_size_of(num_rows)] = mean + (seconds - mean) / count, count

    def seconds(self, num_rows: int, otherwise: float) -> float:
        return self._means.get(_size_of(num_rows), (otherwise, 0))[0]


class ThreadChoice:
    """One model's number of threads. From time to time a few steps run on the next smaller or larger number, a trial.

    A trial's seconds are compared with the mean seconds of the latest steps of the same sizes.
    """

    def __init__(self, candidates: Sequence[int], first: int, allowed: Callable[[], int] | None = None) -> None:
        """candidates: numbers of threads, ascending. first: one of them, chosen until a trial wins. allowed: how many
        the machine allows now, asked again and again; None: as many as the largest."""
        assert first in candidates, (first, candidates)
        self._all = list(candidates)
        self._most = self._all[-1]
        self._allowed = allowed
        self._candidates = self._all
        self._place = self._all.index(first)
        self._now = self._asked_at = 0.0
        self._num_idle = 0
        self._num_trials = 0
        self._moved()
        self._ask()

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(self._candidates)

    @property
    def chosen(self) -> int:
        return self._candidates[self._place]

    @property
    def count(self) -> int:
        """The number of threads for the next forward: the chosen number, or the one on trial."""
        return self._candidates[self._place + self._on_trial]

    def begin_with(self, count: int) -> None:
        """Choose `count`, the quickest number at an earlier start, if it is a candidate."""
        if count in self._candidates:
            self._place = self._candidates.index(count)
            self._moved()

    def limit(self, count: int) -> None:
        """Never use more than `count`, or than the smallest candidate."""
        self._most = count
        self._ask()

    def observe(self, num_rows: int, seconds: float) -> None:
        """Record a forward of `num_rows` tokens on `count` threads."""
        self._now += seconds
        if self._now - self._asked_at >= ASK_SECONDS:
            self._ask()
        if len(self._candidates) == 1:
            return
        usual = self._usual.seconds(num_rows, seconds)
        if self._on_trial:
            self._seconds += seconds
            self._usual_seconds += usual
            self._num_steps += 1
            self._judge()
            return
        self._usual.add(num_rows, seconds)
        self._look(num_rows, seconds)
        due = [direction for direction in self._neighbours() if self._now >= self._due[direction]]
        if due:
            self._begin_trial(min(due, key=lambda direction: self._due[direction]))

    def settle(self, step: Step) -> None:
        """At start: run `step` until neither neighbouring number is quicker."""
        most = self._num_trials + 2 * len(self._candidates)
        while self._is_in_doubt() and self._num_trials < most:
            step()

    def refine(self, step: Step) -> bool:
        """While the engine is idle: continue trials after a change, or begin one if the last is long ago; return
        whether steps ran."""
        self._num_idle += 1
        if self._num_idle % NUM_IDLE == 0:
            self._failed.clear()
        if not self._is_in_doubt():
            return False
        spent = 0.0
        while spent < IDLE_SECONDS:
            spent += step()
        return True

    def _neighbours(self) -> list[int]:
        """The directions in which there is a candidate: 1 more threads, -1 fewer."""
        return [each for each in (1, -1) if 0 <= self._place + each < len(self._candidates)]

    def _is_in_doubt(self) -> bool:
        """Whether a neighbouring number has not been tried since the last change."""
        return not self._failed.issuperset(self._neighbours())

    def _ask(self) -> None:
        self._asked_at = self._now
        self._keep_to(self._most if self._allowed is None else min(self._allowed(), self._most))

    def _keep_to(self, most: int) -> None:
        candidates = [each for each in self._all if each <= most] or self._all[:1]
        if candidates != self._candidates:
            chosen, self._candidates = self.chosen, candidates
            self._place = max((place for place, each in enumerate(candidates) if each <= chosen), default=0)
            self._moved()

    def _moved(self) -> None:
        """Measure anew, and try both neighbours soon."""
        self._usual, self._first_look = Usual(), Usual()
        self._is_first_look = True
        self._failed: set[int] = set()
        self._end_look()
        self._on_trial = 0
        self._waits = {1: SHORTEST_WAIT, -1: SHORTEST_WAIT}
        self._soonest = {1: self._now, -1: self._now}
        self._due = {1: self._now + SHORTEST_WAIT, -1: self._now + 2 * SHORTEST_WAIT}

    def _look(self, num_rows: int, seconds: float) -> None:
        """Try fewer threads soon where steps have become slower since the last change, more where quicker."""
        if self._is_first_look:
            self._first_look.add(num_rows, seconds)
        self._look_seconds += seconds
        self._first_seconds += self._first_look.seconds(num_rows, seconds)
        if self._look_seconds < LOOK_SECONDS:
            return
        ratio = self._look_seconds / self._first_seconds
        if not self._is_first_look and not 1 / DRIFT < ratio < DRIFT:
            direction = -1 if ratio > 1 else 1
            self._usual, self._first_look, self._is_first_look = Usual(), Usual(), True
            self._waits[direction] = SHORTEST_WAIT
            self._due[direction] = max(self._now + LOOK_SECONDS, self._soonest[direction])
        else:
            self._is_first_look = False
        self._end_look()

    def _end_look(self) -> None:
        self._look_seconds = self._first_seconds = 0.0

    def _begin_trial(self, direction: int) -> None:
        self._on_trial = direction
        self._seconds, self._usual_seconds, self._num_steps = 0.0, 0.0, 0

    def _judge(self) -> None:
        """End the trial once it tells, or costs too much."""
        loss, direction = self._seconds - self._usual_seconds, self._on_trial
        is_short = self._usual_seconds < TRIAL_SECONDS or self._num_steps < TRIAL_STEPS
        is_long = self._usual_seconds >= LONG_TRIAL_SECONDS and self._num_steps >= LEAST_STEPS
        if is_short and not is_long and loss <= TRIAL_SECONDS:
            return
        self._num_trials += 1
        if self._seconds < WORTH * self._usual_seconds:
            self._place += direction
            self._moved()
            return
        self._on_trial = 0
        self._failed.add(direction)
        wait = max(min(2 * self._waits[direction], LONGEST_WAIT), loss / LOSS_SHARES[direction])
        self._waits[direction], self._due[direction] = wait, self._now + wait
        self._soonest[direction] = self._now + loss / DRIFT_SHARE


def _size_of(num_rows: int) -> int:
    return round(4 * math.log2(num_rows))


def choose_threads(count: int | None, num_parameters: int, can_change: bool, num_workers: int = 1) -> ThreadChoice:
    """A fixed `count` if given; else a choice within one worker's part of the cores that this process may keep busy,
    now and later, which starts at a number that suits the model's size."""
    if count is not None:
        return ThreadChoice([count], count)
    num_cores = max(1, int(nb.config.NUMBA_NUM_THREADS) // num_workers)
    candidates = sorted({1 << power for power in range(num_cores.bit_length())} | {num_cores})
    worth = max(1, num_parameters // PARAMETERS_PER_THREAD)
    first = max(each for each in candidates if each <= worth)
    if not can_change:
        return ThreadChoice([first], first)
    return ThreadChoice(candidates, first, lambda: max(1, cores().usable // num_workers))


def use_threads(count: int) -> None:
    """Use `count` threads for the work of this thread from now on. It takes a microsecond, so two models can take
    turns.

    Numba's OpenMP layer would reset torch's number whenever its pool starts, and its waiting threads would spin beside
    torch's; numba's "workqueue" does neither.
    """
    nb.config.THREADING_LAYER = "workqueue"
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)
    nb.set_num_threads(min(count, nb.config.NUMBA_NUM_THREADS))
