"""Prompts outlive their engine in files: the same tokens whether rows were computed, found in memory or read."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from decoding.cache import prefix_keeper
from decoding.cache.block_pool import BLOCK_LEN
from decoding.config import EngineConfig
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.stats import RequestStats
from decoding.engine.engine import Engine
from decoding.engine.intake import RowSources
from decoding.engine.start import start_engine
from decoding.errors import ConfigError
from tests.models import VOCAB_SIZE
from tests.pairs import CONFIG, GIVEN, draft_of, finish, target_of

PROMPT_LEN = 20 * BLOCK_LEN + 5
NUM_KEPT = 20 * BLOCK_LEN  # tokens of a prompt that lie in full blocks
REPLY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_keeper, "FILE_BYTES", 100_000)  # so that a prompt takes several
    monkeypatch.setattr(prefix_keeper, "LEAST_BLOCKS", 2)


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return replace(CONFIG, prefix_dir=str(tmp_path / "prompts"))


def started(config: EngineConfig, with_draft: bool = False) -> Engine:
    return start_engine(target_of("llama"), config, draft_model=draft_of("llama") if with_draft else None, kept=GIVEN)


def prompt_of(seed: int, length: int = PROMPT_LEN) -> NDArray[np.int32]:
    return np.random.default_rng(seed).integers(3, VOCAB_SIZE, length).astype(np.int32)


def request_of(name: str, prompt: NDArray[np.int32], method: str = "none", **fields: Any) -> Request:
    options = {"id": name, "sampling": REPLY} | fields
    return Request(prompt=prompt, speculation=SpeculationParams(method=method, max_nodes=8), **options)


def run(
    engine: Engine, prompt: NDArray[np.int32], method: str = "none", **fields: Any
) -> tuple[list[int], RequestStats]:
    """A request's reply and what it cost, once what it leaves is written."""
    request = request_of("one", prompt, method, **fields)
    engine.add(request)
    ended, _ = finish(engine)
    flush(engine)
    engine.pool.check_integrity()
    return request.output.tolist(), ended[request.id]


def flush(engine: Engine) -> None:
    for _ in range(60_000):
        if not engine.has_prompts_to_keep:
            return
        engine.on_idle()
        time.sleep(0.001)
    raise AssertionError("prompts were never written")


def files_of(config: EngineConfig) -> list[Path]:
    assert config.prefix_dir is not None
    return sorted(Path(config.prefix_dir).glob("*/*.blocks"))


@pytest.mark.parametrize(("method", "temperature"), [("auto", 0.8), ("spine", 0.8), ("dynamic", 0.0), ("none", 0.0)])
def test_after_a_restart_a_prompt_is_read_and_the_reply_is_the_same(
    config: EngineConfig, method: str, temperature: float
) -> None:
    sampling = replace(REPLY, temperature=temperature, seed=3)
    replies, found = [], []
    for number in range(3):
        engine = started(config if number else replace(config, prefix_dir=None), with_draft=True)
        reply, stats = run(engine, prompt_of(1), method, sampling=sampling)
        replies.append(reply)
        found.append(stats.cached_tokens)
        again, stats = run(engine, prompt_of(1), method, sampling=sampling, id="again")  # from memory
        assert (again, stats.cached_tokens) == (reply, NUM_KEPT)
        engine.close(10.0)
    assert replies == [replies[0]] * 3
    assert found == [0, 0, NUM_KEPT]
    assert len(files_of(config)) > 1
    stats = engine.stats()
    assert (stats.kept_hits, stats.kept_tokens) == (1, NUM_KEPT)
    assert stats.kept_bytes == sum(path.stat().st_size for path in files_of(config)) > 0


def test_another_worker_goes_on_from_it_and_another_key_or_salt_does_not_see_it(config: EngineConfig) -> None:
    first, second = started(config), started(config)
    run(first, prompt_of(1), tenant="alice")
    longer = np.concatenate((prompt_of(1), prompt_of(2, 40)))
    for number, fields in enumerate(({"tenant": "bob"}, {"tenant": "alice", "cache_salt": "salt"})):
        _, stats = run(second, longer, id=f"{number}", **fields)
        assert stats.cached_tokens == 0
    _, stats = run(second, longer, tenant="alice")
    assert stats.cached_tokens == NUM_KEPT
    modes = {path.stat().st_mode & 0o777 for path in files_of(config)}
    assert modes == {0o600}


def test_a_conversation_goes_on_in_the_files_of_its_turns(config: EngineConfig) -> None:
    engine = started(config)
    history = prompt_of(1)
    reply, _ = run(engine, history)
    before = files_of(config)
    history = np.concatenate((history, np.array(reply, np.int32), prompt_of(2, 40)))
    run(engine, history, id="two")
    assert len(files_of(config)) > len(before)
    later = started(config)
    _, stats = run(later, history)
    assert stats.cached_tokens == (len(history) - 1) // BLOCK_LEN * BLOCK_LEN


def test_blocks_that_memory_has_lost_are_read_again(config: EngineConfig) -> None:
    engine = started(config)
    reply, _ = run(engine, prompt_of(1))
    engine.pool.forget()
    again, stats = run(engine, prompt_of(1))
    assert (again, stats.cached_tokens) == (reply, NUM_KEPT)
    assert engine.stats().kept_hits == 1


def test_requests_with_one_prompt_wait_for_one_reading(config: EngineConfig) -> None:
    engine = started(config)
    run(engine, prompt_of(1))
    engine.pool.forget()
    requests = [request_of(f"{number}", prompt_of(1)) for number in range(3)]
    for request in requests:
        engine.add(request)
    assert engine.abort("1") is not None
    finish(engine)
    assert engine.stats().kept_hits == 1
    assert requests[0].output.tolist() == requests[2].output.tolist()
    engine.pool.check_integrity()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def replaced(path: Path) -> None:
    path.write_bytes(b"gander prefix 9\n" + bytes(1000))


@pytest.mark.parametrize("spoil", [cut, changed, emptied, replaced, Path.unlink], ids=lambda each: each.__name__)
def test_what_is_damaged_is_passed_over(
    config: EngineConfig, spoil: Callable[[Path], Any], caplog: pytest.LogCaptureFixture
) -> None:
    reply, _ = run(started(config), prompt_of(1))
    waiting = started(config)
    for path in files_of(config):
        spoil(path)
    caplog.set_level(logging.WARNING, "gander.prefixes")
    again, stats = run(waiting, prompt_of(1))
    assert again == reply
    assert stats.cached_tokens < NUM_KEPT
    again, stats = run(started(config), prompt_of(1))
    assert (again, stats.cached_tokens) == (reply, NUM_KEPT), "it was written again"
    told = [record.message for record in caplog.records]
    assert bool(told) is (spoil is not Path.unlink)
    assert all("passed over" in message for message in told)


def test_a_write_that_fails_is_told_and_replies_go_on(
    config: EngineConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = started(config)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("decoding.cache.prefix_folder.write_file", full)
    caplog.set_level(logging.WARNING, "gander.prefixes")
    reply, _ = run(engine, prompt_of(1))
    again, _ = run(engine, prompt_of(1))
    assert reply == again
    assert "No space left on device" in caplog.text
    assert files_of(config) == []


def test_the_least_recently_used_files_make_way(config: EngineConfig) -> None:
    engine = started(config)
    run(engine, prompt_of(1))
    size = sum(path.stat().st_size for path in files_of(config))
    first = files_of(config)
    for path in first:
        os.utime(path, (1, 1))
    unfinished = first[0].with_name("tmp0123456789abcdef.part")
    unfinished.write_bytes(b"left by a crash")
    os.utime(unfinished, (1, 1))
    stranger = first[0].with_name("notes.txt")
    stranger.write_text("mine")
    os.utime(stranger, (1, 1))
    smaller = started(replace(config, prefix_bytes=int(1.5 * size)))
    run(smaller, prompt_of(2), id="two")
    left = files_of(config)
    assert sum(path.stat().st_size for path in left) <= 1.5 * size
    assert not set(first) <= set(left)
    assert not unfinished.exists()
    assert stranger.read_text() == "mine"
    _, stats = run(started(config), prompt_of(2))
    assert stats.cached_tokens == NUM_KEPT


def test_reading_leaves_running_requests_the_blocks_they_are_owed(config: EngineConfig) -> None:
    run(started(config), prompt_of(1))
    small = started(replace(config, kv_slots=30 * BLOCK_LEN))
    busy = request_of("busy", prompt_of(2, 22 * BLOCK_LEN))
    small.add(busy)
    small.step()
    reading = request_of("reading", prompt_of(1))
    small.add(reading)
    ended, _ = finish(small)
    assert ended["reading"].cached_tokens < NUM_KEPT
    assert (busy.num_output, reading.num_output) == (12, 12)
    small.pool.check_integrity()


def test_what_cannot_be_kept_is_refused_at_start(config: EngineConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unusable = tmp_path / "file" / "prompts"
    for wrong, sentence in (
        ({"prefix_cache": False}, "the prefix cache is off"),
        ({"prefix_bytes": 10}, "--prefix-bytes is less than one block's"),
        ({"prefix_dir": str(unusable)}, "cannot be used: Not a directory"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            started(replace(config, **wrong))


def test_a_request_waits_for_the_reading_and_for_nothing_else(config: EngineConfig) -> None:
    engine = started(config)
    future: Future[int] = Future()
    engine._intake._rows = RowSources(lambda request: future if request.id == "reads" else None)
    for name in ("reads", "runs"):
        engine.add(request_of(name, prompt_of(3, 20)))
    for _ in range(1000):
        engine.step()
        if engine.request_ids() == ["reads"]:
            break
    assert engine.request_ids() == ["reads"]
    future.set_result(0)
    ended, _ = finish(engine)
    assert ended["reads"].emitted == 12
