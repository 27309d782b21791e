"""Replay at equal nodes: what is asked, how it is measured, and that the command goes on where it stopped."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from decoding.bench.__main__ import main
from decoding.bench.contestant import Contestant
from decoding.bench.replay import __main__ as replay
from decoding.bench.replay.rows import Row, measure_row, way_of
from decoding.bench.replay.tables import differing, render
from decoding.bench.workload import PromptChoice, Workload, load_workload
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.checkpoint import BUNDLED_FOLDER
from decoding.model.target_model import TargetModel
from tests.models import VOCAB_SIZE, tiny

CHOICE = PromptChoice(count=2, max_tokens=24, max_prompt_len=600)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED_FOLDER / "tokenizer.json"))


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=300, kv_slots=8192)
    return start_engine(TargetModel.from_model(tiny("llama", 3), config), config)


def repetition(num_prompts: int) -> Workload:
    pattern = np.random.default_rng(0).integers(3, VOCAB_SIZE, 8)
    prompts = tuple(np.tile(np.roll(pattern, shift), 5).astype(np.int32) for shift in range(num_prompts))
    return Workload("repetition", prompts, max_tokens=40)


def row(method: str, nodes: int, tokens: int, fingerprint: int = 1) -> Row:
    return Row(
        method=method,
        workload="code",
        temperature=0.0,
        nodes=nodes,
        tokens=tokens,
        forwards=100,
        drafted=100 * nodes,
        accepted=tokens - 100,
        fingerprint=fingerprint,
    )


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_every_method_gives_the_tokens_of_none_within_its_budget(engine: Engine, temperature: float) -> None:
    workload = repetition(3)
    plain = measure_row(engine, workload, temperature, way_of("none"), 0)
    assert (plain.tau, plain.nodes_per_step) == (1.0, 0.0)
    for label in ("spine", "stand", "recycle", "lookup", "suffix", "suffix-branches", "auto"):
        found = measure_row(engine, workload, temperature, way_of(label), 4)
        assert (found.tokens, found.fingerprint) == (plain.tokens, plain.fingerprint), label
        assert found.nodes_per_step <= 4
        assert found.accepted <= found.drafted
    assert measure_row(engine, workload, 0.0, way_of("suffix"), 32).tau > 1.2, "a text that repeats itself"


def test_a_row_is_the_same_whenever_it_is_measured(engine: Engine) -> None:
    first = measure_row(engine, repetition(2), 0.7, way_of("stand"), 8)
    assert measure_row(engine, repetition(2), 0.7, way_of("stand"), 8) == first, "its session is its own"


def test_a_prediction_is_drafted_from(engine: Engine) -> None:
    workload = repetition(1)
    (task,) = workload.tasks(0.0)
    plain = Contestant(engine, "none", way_of("none").at(0)).answer(task).tokens
    predicted = replace(workload, predictions=(plain,))
    assert measure_row(engine, predicted, 0.0, way_of("spine"), 16).tau > 3


def test_a_file_that_is_not_there_is_no_workload(tokenizer: Tokenizer) -> None:
    assert load_workload("humaneval", tokenizer, CHOICE) is None


def test_tables_say_who_is_longest_who_is_behind_and_whose_tokens_differ() -> None:
    rows = [row("none", 0, 100), row("spine", 8, 250), row("auto", 8, 240), row("spine", 32, 300), row("auto", 32, 310)]
    text = render(rows, "auto")
    assert "| spine | **2.50** / 8.0 | 3.00 / 32.0 |" in text
    assert "| auto | 2.40 / 8.0 | **3.10** / 32.0 |" in text
    assert "at 1 of 2 places" in text
    assert "| code, 0, 8 | 2.40 | spine 2.50 | 0.960 |" in text
    assert "differ" not in text
    wrong = [*rows, row("lookup", 8, 250, fingerprint=2)]
    assert [each.method for each in differing(wrong)] == ["lookup"]
    assert "**Tokens differ from `none`**: lookup at 8 on code, 0." in render(wrong, "auto")


@pytest.mark.slow
def test_the_command_keeps_every_row_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "rows.json"
    given = ["replay", "--workloads", "code,stories", "--temperatures", "0", "--prompts", "1", "--max-tokens", "16"]
    given += ["--out", str(out)]
    assert main([*given, "--methods", "spine", "--budgets", "2"]) == 0
    first = json.loads(out.read_text(encoding="utf-8"))["rows"]
    assert [(each["method"], each["workload"], each["nodes"]) for each in first] == [
        ("none", "code", 0),
        ("none", "stories", 0),
        ("spine", "code", 2),
        ("spine", "stories", 2),
    ]
    measured: list[str] = []

    def note(*arguments: object) -> Row:
        measured.append(arguments[3].label)  # type: ignore[attr-defined]
        return msgspec.convert(first[2], Row)

    monkeypatch.setattr(replay, "measure_row", note)
    assert main([*given, "--methods", "spine", "--budgets", "2"]) == 0
    assert measured == []
    assert main([*given, "--methods", "spine,lookup", "--budgets", "2"]) == 0
    assert measured == ["lookup", "lookup"]
    assert main([*given, "--methods", "spine", "--budgets", "2", "--again"]) == 0
    assert measured[2:] == ["none", "none", "spine", "spine"]
    assert "**code, temperature 0**" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert main([*given, "--methods", "spine", "--budgets", "2", "--prompts", "2"]) == 0
    assert len(measured) == 10, "rows of another plan say nothing of this one"


def test_a_public_question_is_asked_through_the_chat_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "gsm8k_test.jsonl").write_text('{"prompt": "How many?"}\n' * 6)
    asked: list[str] = []

    def chat(text: str) -> list[int]:
        asked.append(text)
        return [5, 6, 7]

    workload = load_workload("gsm8k", tokenizer, replace(CHOICE, data=tmp_path, chat=chat))
    assert workload is not None
    assert [prompt.tolist() for prompt in workload.prompts] == [[5, 6, 7]] * CHOICE.count
    assert all(text.startswith("How many?") for text in asked)
    assert load_workload("gsm8k", tokenizer, replace(CHOICE, data=tmp_path)) is None  # no template
    assert load_workload("mt_bench", tokenizer, replace(CHOICE, data=tmp_path, chat=chat)) is None  # no file


def test_an_edit_expects_the_old_program(tokenizer: Tokenizer, tmp_path: Path) -> None:
    program = "def add(first, second):\n    return first + second"
    (tmp_path / "classeval.jsonl").write_text(json.dumps({"reference": program}))
    workload = load_workload("edit", tokenizer, replace(CHOICE, data=tmp_path, chat=lambda _: [5]))
    assert workload is not None
    (task,) = workload.tasks(0.7)
    assert tokenizer.decode(task.prediction.tolist()) == f"```python\n{program}\n```"
