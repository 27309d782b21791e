"""The rule that chooses the number of threads, as a function of what it observes."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise

import pytest

from decoding.model.threads import LONGEST_WAIT, NUM_IDLE, ThreadChoice, choose_threads

STEP = 2e-3
Seconds = Callable[[int, int], float]  # of a forward, by its number of threads and of rows


class Machine:
    """Runs forwards that take as long as it is told, and counts them and their seconds by the number of threads."""

    def __init__(self, choice: ThreadChoice, seconds: Seconds) -> None:
        self.choice = choice
        self.seconds = seconds
        self.spent: defaultdict[int, float] = defaultdict(float)
        self.num_steps: Counter[int] = Counter()
        self.num_moves = 0

    def step(self, num_rows: int = 1) -> float:
        count, chosen = self.choice.count, self.choice.chosen
        seconds = self.seconds(count, num_rows)
        self.choice.observe(num_rows, seconds)
        self.spent[count] += seconds
        self.num_steps[count] += 1
        self.num_moves += self.choice.chosen != chosen
        return seconds

    def work(self, seconds: float, rows: Callable[[], int] = lambda: 1) -> None:
        """Steps for so long."""
        end = sum(self.spent.values()) + seconds
        while sum(self.spent.values()) < end:
            self.step(rows())


def quiet(count: int, num_rows: int, step: float = STEP) -> float:
    """Two threads gain a third."""
    return step * num_rows**0.5 / (1.5 if count > 1 else 1.0)


def busy(seed: int = 0, step: float = STEP) -> Seconds:
    """A neighbour takes a core from time to time: steps on two threads take up to thrice as long."""
    rng = random.Random(seed)
    return lambda count, num_rows: quiet(count, num_rows, step) * (rng.uniform(1, 3) if count > 1 else 1)


def barred(seed: int = 0) -> Seconds:
    """Threads spin at barriers beside a neighbour: one step in ten on two threads takes a hundred times as long."""
    rng = random.Random(seed)
    return lambda count, num_rows: quiet(count, num_rows) * (100 if count > 1 and rng.random() < 0.1 else 1)


@pytest.mark.parametrize("first", [1, 2])
def test_at_start_the_quicker_number_is_chosen_whatever_the_first_guess_was(first: int) -> None:
    choice = ThreadChoice([1, 2], first)
    choice.settle(Machine(choice, quiet).step)
    assert choice.chosen == choice.count == 2
    choice = ThreadChoice([1, 2], first)
    choice.settle(Machine(choice, busy()).step)
    assert choice.chosen == choice.count == 1


@pytest.mark.parametrize("first", [1, 4, 16])
def test_of_many_numbers_the_best_is_found_step_by_step(first: int) -> None:
    choice = ThreadChoice([1, 2, 4, 8, 16], first)
    choice.settle(Machine(choice, lambda count, _: STEP * (8 / count + count / 8)).step)
    assert choice.chosen == 8


def test_more_threads_that_gain_almost_nothing_are_not_taken() -> None:
    choice = ThreadChoice([1, 2], 1)
    choice.settle(Machine(choice, lambda count, _: STEP / (1.05 if count > 1 else 1.0)).step)
    assert choice.chosen == 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("step", [5e-4, STEP, 4e-2, 1e-1])
def test_a_neighbour_that_comes_is_noticed_and_within_two_seconds_that_it_went(step: float, seed: int) -> None:
    choice = ThreadChoice([1, 2], 2)
    machine = Machine(choice, lambda count, num_rows: quiet(count, num_rows, step))
    machine.work(20)
    assert choice.chosen == 2
    machine.seconds = busy(seed, step)
    machine.work(6)
    assert choice.chosen == 1
    machine.seconds = lambda count, num_rows: quiet(count, num_rows, step)
    machine.work(2)
    assert choice.chosen == 2


@pytest.mark.parametrize("seed", range(5))
def test_beside_a_neighbour_that_stays_the_number_stays_and_trials_cost_a_twentieth(seed: int) -> None:
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, busy(seed))
    machine.work(300)
    assert machine.num_moves <= 6  # a short trial may happen to meet few slow steps
    assert machine.spent[2] > 0
    assert sum(machine.spent.values()) < 1.1 * machine.num_steps.total() * STEP


@pytest.mark.parametrize("seed", range(3))
def test_trials_that_cost_much_become_seldom(seed: int) -> None:
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, barred(seed))
    machine.work(300)
    assert 0 < machine.spent[2] < 0.2 * machine.spent[1]


def test_on_a_quiet_machine_trials_cost_less_than_a_hundredth() -> None:
    rng = random.Random(0)
    choice = ThreadChoice([1, 2], 2)
    machine = Machine(choice, lambda count, num_rows: quiet(count, num_rows) * rng.uniform(0.9, 1.1))
    machine.work(300, lambda: rng.choice((1, 1, 1, 9, 30)))
    assert machine.num_moves == 0
    assert 0 < machine.spent[1] < 0.01 * machine.spent[2]


def test_prompts_that_come_and_go_are_no_neighbours() -> None:
    choice = ThreadChoice([1, 2], 2)
    machine = Machine(choice, quiet)
    for turn in range(100):
        machine.seconds = (lambda count, rows: 1.4 * quiet(count, rows)) if turn % 2 else quiet  # a long context
        machine.work(1.5)
    assert machine.num_moves == 0
    assert machine.spent[1] < 0.07 * machine.spent[2]


def test_noise_does_not_look_like_a_gain() -> None:
    rng = random.Random(0)
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, lambda _, num_rows: STEP * num_rows**0.5 * rng.uniform(0.8, 1.2))
    machine.work(300, lambda: rng.choice((1, 1, 1, 9, 30, 512)))
    assert machine.num_moves <= 12  # of some 230 trials


def test_while_nobody_waits_a_trial_comes_now_and_then_and_is_finished() -> None:
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, quiet)
    choice.settle(machine.step)
    machine.seconds = busy()
    measured = [choice.refine(machine.step) for _ in range(3 * NUM_IDLE)]
    assert choice.chosen == 1
    assert measured.index(True) == NUM_IDLE - 1
    assert 0 < sum(measured) < 0.1 * len(measured)


def test_a_given_number_is_fixed_and_a_limit_leaves_a_choice_below() -> None:
    fixed = choose_threads(3, 10**9, can_change=True)
    machine = Machine(fixed, lambda count, _: STEP / count)
    fixed.settle(machine.step)
    machine.work(20)
    assert fixed.candidates == (3,)
    assert set(machine.num_steps) == {3}
    choice = ThreadChoice([1, 2, 4, 8], 8)
    choice.limit(5)
    assert (choice.candidates, choice.chosen) == ((1, 2, 4), 4)
    choice.limit(1)
    assert (choice.candidates, choice.chosen) == ((1,), 1)


def test_what_the_machine_allows_is_followed_down_and_up() -> None:
    allowed = 8
    choice = ThreadChoice([1, 2, 4, 8], 8, lambda: allowed)
    machine = Machine(choice, lambda count, _: STEP / count)
    machine.work(3)
    assert choice.chosen == 8
    for allowed, expected in ((3, 2), (1, 1), (0, 1), (8, 8), (4, 4), (100, 8)):
        machine.work(2)
        assert choice.chosen == expected
        assert choice.count <= max(1, allowed)
    choice.limit(2)
    machine.work(2)
    assert choice.chosen == 2  # a limit of ours stays, whatever the machine allows


def test_the_first_guess_follows_the_models_size_and_a_gpus_host_stays_with_it() -> None:
    assert choose_threads(None, 4_000_000, can_change=True).chosen == 1
    large = choose_threads(None, 10**12, can_change=True)
    assert large.chosen == max(large.candidates)
    assert choose_threads(None, 10**12, can_change=False).candidates == (large.chosen,)


def test_workers_share_the_cores() -> None:
    alone = choose_threads(None, 10**12, can_change=True)
    assert choose_threads(None, 10**12, can_change=True, num_workers=2).chosen == max(1, alone.chosen // 2)
    assert choose_threads(None, 10**12, can_change=True, num_workers=10**6).candidates == (1,)
    assert choose_threads(3, 10**12, can_change=True, num_workers=2).chosen == 3


def test_between_two_trials_of_more_threads_pass_less_than_two_seconds() -> None:
    choice = ThreadChoice([1, 2], 1)
    machine, tried = Machine(choice, lambda count, _: STEP * (1.1 if count > 1 else 1.0)), [0.0]
    while sum(machine.spent.values()) < 30:
        before = choice.count
        machine.step()
        if choice.count > before:
            tried.append(sum(machine.spent.values()))
    gaps = [later - earlier for earlier, later in pairwise(tried)]
    assert gaps[0] < gaps[1] < LONGEST_WAIT < max(gaps) < 1.5
