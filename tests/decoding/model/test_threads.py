"""The number of threads follows what is quicker, by means and with doubt, and never changes a bit of any logits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch

from decoding.cache.batch import Segment, StepBatch, pack
from decoding.cache.block_pool import num_blocks_for
from decoding.cache.kv_cache import KvCache
from decoding.config import EngineConfig
from decoding.model.linear import exact as exact_linear
from decoding.model.target_model import TargetModel
from decoding.model.threads import (
    LOSS_SHARE,
    NUM_IDLE,
    TRIAL_SECONDS,
    WINDOW_SECONDS,
    ThreadChoice,
    choose_threads,
    use_threads,
)
from decoding.weights.numbers.onednn_floats import can_pack
from tests.models import tiny

STEP = 2e-3
Seconds = Callable[[int, int], float]  # of a forward, by its number of threads and of rows


class Machine:
    """Runs forwards that take as long as it is told, and counts them and their seconds by the number of threads."""

    def __init__(self, choice: ThreadChoice, seconds: Seconds) -> None:
        self.choice = choice
        self.seconds = seconds
        self.spent: Counter[int] = Counter()
        self.num_steps: Counter[int] = Counter()

    def step(self, num_rows: int = 1) -> float:
        count = self.choice.count
        seconds = self.seconds(count, num_rows)
        self.choice.observe(num_rows, seconds)
        self.spent[count] += seconds
        self.num_steps[count] += 1
        return seconds

    def work(self, seconds: float, rows: Callable[[], int] = lambda: 1) -> None:
        """Steps for so long."""
        end = self.spent.total() + seconds
        while self.spent.total() < end:
            self.step(rows())


def quiet(count: int, num_rows: int) -> float:
    """Two threads gain a third."""
    return STEP * num_rows**0.5 / (1.5 if count > 1 else 1.0)


def busy(seed: int = 0) -> Seconds:
    """Somebody spins on a core: one step in ten on two threads takes a hundred times as long, the others gain."""
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


def test_a_neighbour_that_comes_is_noticed_under_load_and_that_it_went_as_well() -> None:
    choice = ThreadChoice([1, 2], 2)
    machine = Machine(choice, quiet)
    machine.work(3 * WINDOW_SECONDS)
    assert choice.chosen == 2
    machine.seconds = busy()
    machine.work(2 * WINDOW_SECONDS)
    assert choice.chosen == 1
    machine.seconds = quiet
    machine.work(4 * TRIAL_SECONDS / LOSS_SHARE)
    assert choice.chosen == 2


@pytest.mark.parametrize("seed", range(3))
def test_beside_a_neighbour_two_threads_are_tried_seldom_and_stopped_early(seed: int) -> None:
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, busy(seed))
    machine.work(300)
    assert 0 < machine.num_steps[2] < 0.01 * machine.num_steps[1]
    assert machine.spent[2] < 0.05 * machine.spent[1]  # also where a trial happened to meet no slow step


def test_steps_of_other_sizes_and_noise_do_not_look_like_a_gain() -> None:
    rng = random.Random(0)
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, lambda _, num_rows: STEP * num_rows**0.5 * rng.uniform(0.8, 1.2))
    machine.work(300, lambda: rng.choice((1, 1, 1, 9, 30, 512)))
    assert machine.num_steps[2] < 0.02 * machine.num_steps[1]


def test_while_nobody_waits_a_trial_comes_now_and_then_and_is_finished() -> None:
    choice = ThreadChoice([1, 2], 1)
    machine = Machine(choice, quiet)
    measured = [choice.refine(machine.step) for _ in range(NUM_IDLE + 100)]
    assert choice.chosen == 2
    assert measured.index(True) == NUM_IDLE - 1
    assert 0 < sum(measured) < 0.1 * NUM_IDLE
    assert not choice.refine(machine.step)


def test_a_given_number_is_fixed_and_a_limit_leaves_a_choice_below() -> None:
    fixed = choose_threads(3, 10**9, can_change=True)
    machine = Machine(fixed, lambda count, _: STEP / count)
    fixed.settle(machine.step)
    machine.work(2 * WINDOW_SECONDS)
    assert fixed.candidates == (3,)
    assert set(machine.num_steps) == {3}
    choice = ThreadChoice([1, 2, 4, 8], 8)
    choice.limit(5)
    assert (choice.candidates, choice.chosen) == ((1, 2, 4), 4)
    choice.limit(1)
    assert (choice.candidates, choice.chosen) == ((1,), 1)


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


def config_of(dtype: str) -> EngineConfig:
    return EngineConfig(max_model_len=512, dtype=dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model_type", "dtype"),
    [
        ("llama", "float32"),
        ("llama", "bfloat16"),
        ("mixtral", "float32"),
        *(pytest.param(each, "float32", marks=pytest.mark.slow) for each in ("gpt_neox", "gemma3_text", "qwen3_moe")),
        *(pytest.param(each, "bfloat16", marks=pytest.mark.slow) for each in ("gpt_neox", "gemma3_text", "mixtral")),
        pytest.param("qwen3_moe", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_logits_are_the_same_bits_on_any_number_of_threads(
    model_type: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exact_linear, "PARALLEL_WORK", 0)
    monkeypatch.setattr("decoding.attention.exact.PARALLEL_WORK", 0)
    if not can_pack(torch.device("cpu"), getattr(torch, dtype)):
        pytest.skip(f"this processor cannot pack {dtype}")
    model = TargetModel.from_model(tiny(model_type).to(getattr(torch, dtype)), config_of(dtype))
    assert model.is_exact
    assert len(model.threads.candidates) == len(choose_threads(None, 0, can_change=True).candidates)
    cache = KvCache(model.new_store(num_blocks_for(450)))
    context = cache.new_rows(450)
    tokens = np.random.default_rng(0).integers(3, model.vocab_size, 450).astype(np.int32)
    model.forward(pack([Segment(context, tokens[:50])], cache.store))
    cache.store.commit(context, np.arange(50, dtype=np.int32))
    for num_rows in (1, 2, 7, 33, 400):
        rows = []
        for count in (1, 2, 3):
            model.threads = ThreadChoice([count], count)
            rows.append(model.forward(pack([Segment(context, tokens[50 : 50 + num_rows])], cache.store)))
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[0], rows[2])


class Uneven(TargetModel):
    """One whose logits hang on the number of threads, as another processor's kernels might."""

    def _run(self, batch: StepBatch) -> torch.Tensor:
        return super()._run(batch) + 1e-6 * torch.get_num_threads()


def test_where_threads_change_bits_their_number_stays_and_is_in_the_fingerprint() -> None:
    even, uneven = (kind.from_model(tiny("llama"), config_of("float32")) for kind in (TargetModel, Uneven))
    if len(even.threads.candidates) == 1:
        pytest.skip("this machine has one core")
    assert uneven.is_exact
    assert uneven.threads.candidates == (even.threads.chosen,)
    assert uneven.fingerprint != even.fingerprint
    assert len(uneven.fingerprint) == len(even.fingerprint)


def test_both_kinds_of_compiled_loops_obey_the_number() -> None:
    import numba as nb

    for count in (1, 2, 1):
        use_threads(count)
        assert torch.get_num_threads() == count
        assert nb.get_num_threads() == min(count, nb.config.NUMBA_NUM_THREADS)
