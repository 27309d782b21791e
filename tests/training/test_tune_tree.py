"""Tuning counts accepted slots, goes on where it stopped, and keeps the best."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from decoding.training.first_tree import initial_tree
from decoding.training.tune_tree import Counts, Plan, conclude, count_sample, load_counts, read_prompts
from tests.models import tiny

PLAN = Plan(model="tiny", data="none", samples=2, trajectories=2, max_tokens=24, temperature=0.6)
PROMPTS = [np.arange(3, 20, dtype=np.int32), np.arange(40, 60, dtype=np.int32)]


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=256, kv_slots=4096, max_nodes=625, max_batch_rows=1300, threads=1)
    return start_engine(TargetModel.from_model(tiny("llama", vocab_size=32), config), config)


def test_counting_can_stop_and_go_on_and_keeps_what_was_accepted(engine: Engine, tmp_path: Path) -> None:
    tree = initial_tree()
    whole = Counts(plan=PLAN, slots=[0] * len(tree))
    for prompt in PROMPTS:
        count_sample(engine, tree, prompt % 32, whole)
    assert whole.samples == 2
    assert whole.tokens == 2 * 2 * 24 or whole.tokens > whole.forwards
    assert whole.forwards < whole.tokens
    assert sum(whole.slots) == whole.tokens - whole.forwards
    assert whole.slots[0] == 0

    path = tmp_path / "tree.counts.json"
    half = load_counts(path, PLAN, len(tree))
    count_sample(engine, tree, PROMPTS[0] % 32, half)
    path.write_bytes(msgspec.json.encode(half))
    resumed = load_counts(path, PLAN, len(tree))
    assert resumed.samples == 1
    engine.sessions.open("", "tune-1")._ngrams = None  # as a new process would find it
    count_sample(engine, tree, PROMPTS[1] % 32, resumed)
    assert resumed.samples == 2
    other = load_counts(path, msgspec.structs.replace(PLAN, temperature=0.9), len(tree))
    assert other.samples == 0


def test_the_tree_that_is_kept_is_of_the_slots_that_were_accepted_most() -> None:
    tree = initial_tree()
    counts = Counts(plan=PLAN, slots=[0] * len(tree), samples=2, tokens=300, forwards=100)
    counts.slots[-1] = 7
    kept = conclude(tree, counts, 40)
    assert len(kept) == 41
    assert sum(kept.counts) == 7
    assert (kept.made["samples"], kept.made["acceptance_length"]) == (2, 3.0)


def test_prompts_come_from_lines_of_json_or_text(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "one"}\n{"question": "two"}\nthree\n')
    assert read_prompts(path, 2) == ["one", "two"]
    assert read_prompts(path, 5) == ["one", "two", "three"]
