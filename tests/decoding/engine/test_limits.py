"""How much runs together: what is configured, else what the costs and the room of the machine say."""

from __future__ import annotations

import pytest

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.costs.price import CostCurve
from decoding.engine.limits import (
    EXACT_BATCH,
    GPU_BATCH,
    LEAST_BATCH,
    MOST_BATCH,
    MOST_RUNNING,
    TOKENS_EACH,
    Limits,
    limits_for,
)
from decoding.errors import ConfigError
from decoding.model.device.graph_runner import MOST_LOGITS

MUCH = 10**9  # slots


def limits_of(rows_per_base: float = 10.0, slots: int = MUCH, device: str = "cpu", **options: int) -> Limits:
    """On a machine where a forward takes as long before its first row as so many rows do."""
    joint_len = options.pop("joint_len", 0)
    config = EngineConfig(**options)  # type: ignore[arg-type]
    return limits_for(config, CostCurve(base=rows_per_base * 0.001, token=0.001, key=0.0), device, slots, joint_len)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_configured_is_taken_as_it_is(device: str) -> None:
    limits = limits_of(slots=100, device=device, max_running=7, max_batch_rows=33, max_waiting=5, max_step_ms=250)
    assert limits == Limits(7, 33, max_waiting=5, max_step_seconds=0.25, max_prompt_logits=33, max_tree_tokens=33)
    assert limits.max_open == 12


def test_on_a_cpu_as_many_run_as_bring_four_fifths_of_the_most_tokens_a_second() -> None:
    for rows_per_base in (3.0, 20.0, 50.0):
        running = limits_of(rows_per_base).max_running
        assert running / (rows_per_base + running) == pytest.approx(0.8, abs=0.02)
    assert limits_of(0.5).max_running == 8
    assert limits_of(1000.0).max_running == MOST_RUNNING


def test_on_a_gpu_prompts_that_are_to_be_exact_come_in_smaller_pieces() -> None:
    assert limits_of(1e9, device="cuda", max_running=32).max_batch_rows == GPU_BATCH
    assert limits_of(1e9, device="cuda", max_running=32, exact=True).max_batch_rows == EXACT_BATCH
    assert limits_of(1e9, exact=True).max_batch_rows == MOST_BATCH, "a CPU's are exact anyway"


def test_who_runs_should_find_room() -> None:
    assert limits_of(50.0, slots=10 * TOKENS_EACH).max_running == 10
    assert limits_of(50.0, slots=TOKENS_EACH - 1).max_running == 1
    assert limits_of(device="cuda", slots=10 * TOKENS_EACH).max_running == 10


def test_a_step_has_whole_blocks_of_rows_and_one_for_everybody_who_runs() -> None:
    rows = [limits_of(rows_per_base).max_batch_rows for rows_per_base in (0.5, 5.3, 11.7, 1000.0)]
    assert rows == sorted(rows)
    assert (rows[0], rows[-1]) == (LEAST_BATCH, MOST_BATCH)
    assert LEAST_BATCH < rows[1] < rows[2] < MOST_BATCH
    assert all(count % BLOCK_LEN == 0 for count in rows)
    assert limits_of(max_running=2000).max_batch_rows == 2000 + BLOCK_LEN


def test_no_more_run_than_a_step_has_rows_for_beside_a_block_of_a_prompt() -> None:
    assert limits_of(max_batch_rows=40, max_running=100).max_running == 24
    with pytest.raises(ConfigError, match="max_batch_rows is 16, it must be more than 16"):
        limits_of(max_batch_rows=16)


def test_a_gpu_takes_more_whatever_its_curve_says() -> None:
    assert limits_of(0.5, device="cuda").max_running > limits_of(0.5).max_running
    assert limits_of(0.5, device="cuda").max_batch_rows > MOST_BATCH
    assert limits_of(0.5, device="cuda") == limits_of(500.0, device="cuda")


def test_a_gpu_has_room_for_the_logits_of_a_thousand_tokens_and_of_a_root_for_everybody_who_runs() -> None:
    limits = limits_of(device="cuda")
    assert limits.max_logits == 1024 < limits.max_batch_rows
    assert limits_of(device="cuda", max_running=2000).max_tree_tokens == 2000
    assert limits_of(device="cpu").max_logits == limits_of(device="cpu").max_batch_rows


def test_no_step_of_a_gpu_has_more_logits_than_captured_forwards_hold() -> None:
    assert limits_of(device="cuda").max_logits <= MOST_LOGITS


def test_a_picture_that_is_read_in_one_step_has_room_beside_all_that_run() -> None:
    """More than prompts have where the machine says how many these are; but no more than is configured."""
    limits = limits_of(0.5, joint_len=256)
    assert (limits.max_batch_rows, limits.max_running, limits.most_rows) == (LEAST_BATCH, 8, 264)
    assert limits.max_logits == limits.most_rows
    assert limits_of(0.5).most_rows == LEAST_BATCH
    assert limits_of(device="cuda", joint_len=400).max_prompt_logits == 400
    configured = limits_of(max_batch_rows=300, max_running=100, joint_len=256)
    assert (configured.max_running, configured.most_rows) == (44, 300)
    assert limits_of(max_batch_rows=256, max_running=100, joint_len=256).most_rows == 256, "it is refused"
