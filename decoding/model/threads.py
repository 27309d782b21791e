"""Chooses the number of threads for a model's forwards by measuring: at start, while the engine is idle, and under
load.

Beside a busy process most steps on several threads take as long as before, but a few take a hundred times as long,
waiting at a barrier for a thread that lost its core. Mean times show that; minimum and median would hide it.
Knows nothing of models or clocks. Invariant: torch's operations and numba's loops use the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numba as nb
import torch

PARAMETERS_PER_THREAD = 10_000_000  # one thread finishes a smaller share before a second one has woken up
WINDOW_SECONDS = 10.0  # of forwards between two trials
DOUBT_SECONDS = 1.0  # the same after a change, which may have been due to noise
TRIAL_SECONDS, TRIAL_STEPS = 0.1, 16  # a trial lasts at least so many seconds, counted in usual times, and steps
LONG_TRIAL_SECONDS = 2.0  # after so many seconds a trial may have fewer steps
WORTH = 0.9  # another number of threads must take less than this share of the present one's time
LOSS_SHARE = 0.01  # the share of all time that failed trials may cost
NUM_IDLE = 1024  # idle moments between two trials
IDLE_SECONDS = 0.02  # of forwards in an idle moment

Step = Callable[[], float]  # runs a forward, which is passed to `observe`, and returns its seconds


class ThreadChoice:
    """One model's number of threads. From time to time a few steps run on the next smaller or larger number, a trial.

    A trial's seconds are compared with the mean seconds of steps of the same sizes since the last trial.
    """

    def __init__(self, candidates: Sequence[int], first: int) -> None:
        """candidates: numbers of threads, ascending. first: one of them, chosen until a trial wins."""
        assert first in candidates, (first, candidates)
        self._candidates = list(candidates)
        self._place = self._candidates.index(first)
        self._direction = -1
        self._num_idle = 0
        self._num_trials = 0
        self._begin_window(WINDOW_SECONDS)

    @property
    def candidates(self) -> tuple[int, ...]:
        return tuple(self._candidates)

    @property
    def chosen(self) -> int:
        return self._candidates[self._place]

    @property
    def count(self) -> int:
        """The number of threads for the next forward: the chosen number, or the one on trial."""
        return self._candidates[self._place + self._direction] if self._is_trial else self.chosen

    def begin_with(self, count: int) -> None:
        """Choose `count`, the quickest number at an earlier start, if it is a candidate."""
        if count in self._candidates:
            self._place = self._candidates.index(count)
            self._begin_window(WINDOW_SECONDS)

    def limit(self, count: int) -> None:
        """Drop the candidates above `count`, except the smallest if all are."""
        chosen = min(self.chosen, count)
        self._candidates = [each for each in self._candidates if each <= count] or self._candidates[:1]
        self._place = max(place for place, each in enumerate(self._candidates) if place == 0 or each <= chosen)
        self._begin_window(WINDOW_SECONDS)

    def observe(self, num_rows: int, seconds: float) -> None:
        """Record a forward of `num_rows` tokens on `count` threads."""
        if len(self._candidates) == 1:
            return
        size = round(4 * math.log2(num_rows))
        usual, num_steps = self._usual.get(size, (0.0, 0))
        self._seconds += seconds
        self._num_steps += 1
        if not self._is_trial:
            self._usual[size] = (usual + seconds, num_steps + 1)
            if self._is_enough(self._seconds, self._window):
                self._begin_trial()
            return
        self._usual_seconds += usual / num_steps if num_steps else seconds
        loss = self._seconds - self._usual_seconds
        if loss > TRIAL_SECONDS or self._is_enough(self._usual_seconds, TRIAL_SECONDS):
            self._end_trial(loss)

    def settle(self, step: Step) -> None:
        """At start: run `step` until neither neighbouring number is quicker."""
        num_lost, num_neighbours = 0, min(2, len(self._candidates) - 1)
        while num_lost < num_neighbours and self._num_trials < 2 * len(self._candidates):
            before, num_trials = self.chosen, self._num_trials
            self._begin_window(TRIAL_SECONDS)
            while self._num_trials == num_trials:
                step()
            num_lost = num_lost + 1 if self.chosen == before else 0

    def refine(self, step: Step) -> bool:
        """While the engine is idle: continue a trial, or begin one if the last is long ago; return whether one ran."""
        if len(self._candidates) == 1:
            return False
        self._num_idle += 1
        if self._num_idle % NUM_IDLE == 0 and not self._is_trial:
            self._begin_window(TRIAL_SECONDS)
        is_due = self._is_trial or self._window <= DOUBT_SECONDS
        if not is_due:
            return False
        spent = 0.0
        while spent < IDLE_SECONDS:
            spent += step()
        return True

    def _is_enough(self, seconds: float, least: float) -> bool:
        return seconds >= least and (self._num_steps >= TRIAL_STEPS or seconds >= LONG_TRIAL_SECONDS)

    def _begin_window(self, seconds: float) -> None:
        """Measure the chosen number for `seconds` of forwards; then a trial begins."""
        self._window = seconds
        self._is_trial = False
        self._seconds, self._num_steps = 0.0, 0
        self._usual: dict[int, tuple[float, int]] = {}  # seconds and steps by size class, each a fifth wide

    def _begin_trial(self) -> None:
        if not 0 <= self._place + self._direction < len(self._candidates):
            self._direction = -self._direction
        self._is_trial = True
        self._seconds, self._num_steps, self._usual_seconds = 0.0, 0, 0.0

    def _end_trial(self, loss: float) -> None:
        self._num_trials += 1
        if self._seconds < WORTH * self._usual_seconds:
            self._place += self._direction
            self._begin_window(DOUBT_SECONDS)
        else:
            self._direction = -self._direction  # the other neighbour is next
            self._begin_window(max(WINDOW_SECONDS, loss / LOSS_SHARE))


def choose_threads(count: int | None, num_parameters: int, can_change: bool, num_workers: int = 1) -> ThreadChoice:
    """A fixed `count` if given; else a choice within one worker's part of the cores, which starts at a number that
    suits the model's size."""
    if count is not None:
        return ThreadChoice([count], count)
    num_cores = max(1, int(nb.config.NUMBA_NUM_THREADS) // num_workers)
    candidates = sorted({1 << power for power in range(num_cores.bit_length())} | {num_cores})
    worth = max(1, num_parameters // PARAMETERS_PER_THREAD)
    first = max(each for each in candidates if each <= worth)
    return ThreadChoice(candidates if can_change else [first], first)


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
