"""The cache gets what is free and what is asked for, and the context follows it."""

from __future__ import annotations

import pytest
import torch

from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.errors import ConfigError
from decoding.model.memory import (
    CacheRoom,
    StateRoom,
    affordable_slots,
    check_weights_fit,
    expected_bytes,
    free_bytes,
    room_for,
    state_room,
)
from decoding.process.machine import resident_bytes

CPU = torch.device("cpu")
SLOT_BYTES = 2**20
STATE_BYTES = 2**20


def room_of(affordable: int, max_running: int = 4, **options: int) -> CacheRoom:
    config = EngineConfig(**options)  # type: ignore[arg-type]
    return room_for(config.max_model_len or 512, config, affordable, max_running)


def slots_of(**options: float) -> int:
    return affordable_slots(EngineConfig(**options), CPU, SLOT_BYTES)  # type: ignore[arg-type]


def test_slots_are_given_by_number_by_bytes_or_by_share() -> None:
    assert slots_of(kv_slots=5000, kv_memory=0.001) == 5000
    assert slots_of(kv_memory=100 * SLOT_BYTES) == 100
    free = free_bytes(CPU) / SLOT_BYTES  # which others change while this runs
    assert slots_of(kv_memory=0.25) == pytest.approx(0.25 * free, rel=0.3)
    assert slots_of() == pytest.approx(slots_of(kv_memory=0.5), rel=0.3)


def test_workers_on_one_cpu_share_what_one_would_have_and_those_on_gpus_do_not() -> None:
    assert slots_of(kv_slots=5000, workers=2) == 2500
    assert slots_of(kv_memory=100 * SLOT_BYTES, workers=4) == 25
    assert affordable_slots(EngineConfig(kv_slots=5000, workers=2), torch.device("cuda:1"), SLOT_BYTES) == 5000


def test_what_an_earlier_process_had_is_taken_again_wherever_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.model.memory.free_bytes", lambda _: 1000 * SLOT_BYTES)
    assert slots_of(kept_slots=900) == 900, "though half of what is free is less"
    assert slots_of(kept_slots=1001) == slots_of() == 500
    assert slots_of(kept_slots=900, kv_slots=800) == 800


def test_more_bytes_than_are_free_are_refused_with_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"kv_memory is 1048576\.0 GiB, but only \d+\.\d GiB are free"):
        slots_of(kv_memory=2**50)


@pytest.mark.parametrize("num_states", [4, 5, 8, 16, 100])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_states_take_half_of_what_the_cache_may_take(num_states: int, *, prefix_cache: bool) -> None:
    config = EngineConfig(kv_memory=2 * num_states * STATE_BYTES, prefix_cache=prefix_cache)
    room = state_room(config, CPU, STATE_BYTES, 4)
    assert room.num_bytes == (2 * room.max_running + room.max_checkpoints + 2) * STATE_BYTES <= num_states * STATE_BYTES
    assert room.max_running == {4: 1, 5: 1, 8: 2 + (not prefix_cache), 16: 4, 100: 4}[num_states]
    assert room.max_checkpoints == (num_states - 2 - 2 * room.max_running if prefix_cache else 0)


def test_states_of_a_draft_model_take_their_part() -> None:
    config = EngineConfig(kv_memory=2 * 16 * STATE_BYTES)
    assert state_room(config, CPU, STATE_BYTES, 4, STATE_BYTES) == StateRoom(2, 6, 16 * STATE_BYTES)
    assert state_room(config, CPU, 0, 4, STATE_BYTES) == StateRoom(4, 0, 8 * STATE_BYTES)
    assert state_room(config, CPU, 0, 16, STATE_BYTES) == StateRoom(8, 0, 16 * STATE_BYTES)


def test_states_without_room_for_one_sequence_are_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.model.memory.free_bytes", lambda _: 2**40)
    with pytest.raises(
        ConfigError, match=r"takes 4\.0 GiB for one sequence, and there is room for 3\.0 GiB; see kv_mem"
    ):
        state_room(EngineConfig(kv_memory=6 * 2**30), CPU, 2**30, 4)


def test_the_cache_is_no_larger_than_those_that_run_can_use() -> None:
    assert room_of(10**6, max_running=4) == CacheRoom(4 * 512, 512, None)
    assert room_of(10**6, max_running=4, max_model_len=100) == CacheRoom(4 * 112, 100, None)
    assert room_of(1000, max_running=4) == CacheRoom(1000 // BLOCK_LEN * BLOCK_LEN, 512, None)


def test_slots_that_are_asked_for_are_all_made() -> None:
    assert room_of(10**6, max_running=1, kv_slots=10**6).num_slots == 10**6


def test_a_context_that_does_not_fit_is_lowered_with_a_sentence() -> None:
    room = room_of(300)
    assert (room.num_slots, room.max_model_len) == (288, 288)
    assert room.note is not None
    assert "288" in room.note
    assert "512" in room.note
    assert room_of(512).note is None


def test_a_context_that_is_asked_for_is_not_lowered_but_refused() -> None:
    assert room_of(300, max_model_len=280) == CacheRoom(288, 280, None)
    with pytest.raises(ConfigError, match="max_model_len is 400, but the KV cache has room for 288 tokens"):
        room_of(300, max_model_len=400)


def test_less_than_a_block_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"room for 15 tokens and needs at least 16"):
        room_of(15)


def test_weights_that_do_not_fit_are_refused_with_both_numbers() -> None:
    check_weights_fit(2**20, CPU)
    with pytest.raises(ConfigError, match=r"weights take 1048576\.0 GiB, but only \d+\.\d GiB are free"):
        check_weights_fit(2**50, CPU)
    with pytest.raises(ConfigError, match=r"are free; packed in four bits they take about 0\.6 GiB: a GGUF file"):
        check_weights_fit(2**50, CPU, 2**30)
    with pytest.raises(ConfigError, match=r"are free$"):
        check_weights_fit(2**50, CPU, 2**50)


def test_what_is_expected_is_what_is_there_and_the_cache() -> None:
    assert expected_bytes(CPU, 2**30) == pytest.approx(resident_bytes() + 2**30, abs=2**26)


def test_what_a_step_needs_is_not_given_to_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.model.memory.free_bytes", lambda _: 1000 * SLOT_BYTES)
    device, step_bytes = torch.device("cuda"), 400 * SLOT_BYTES
    assert affordable_slots(EngineConfig(), device, SLOT_BYTES, step_bytes=step_bytes) == 510
    assert affordable_slots(EngineConfig(kept_slots=601), device, SLOT_BYTES, step_bytes=step_bytes) == 510
    assert affordable_slots(EngineConfig(), device, SLOT_BYTES, step_bytes=1001 * SLOT_BYTES) == 0
    with pytest.raises(ConfigError, match=r"kv_memory is 0\.7 GiB, but only 0\.6 GiB are free"):
        affordable_slots(EngineConfig(kv_memory=700 * SLOT_BYTES), device, SLOT_BYTES, step_bytes=step_bytes)
