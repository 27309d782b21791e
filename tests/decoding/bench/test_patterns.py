"""Patterns: many replies to one problem, their tables, and the command, on a tiny model and on gosling."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

from decoding.bench.stand import patterns
from decoding.bench.stand.questions import questions_of, read_last_number, read_number, word_problems
from decoding.bench.stand.tables import Replies, render_batches, render_plain, render_sequence
from decoding.bench.stand.trajectories import (
    Answering,
    Question,
    Trajectory,
    acceptance_length,
    accuracy,
    majority_accuracy,
    tokens_per_second,
)
from decoding.bench.stand.variants import drawing_contenders, method_contenders, store_contenders
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.target_model import TargetModel
from server.cli import app
from tests.models import VOCAB_SIZE, tiny

SEED_OF_A_LIVELY_MODEL = 3


def words() -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB_SIZE)}, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    return tokenizer


def words_said(text: str) -> int:
    return len(text.split())


@pytest.fixture(scope="module")
def engine() -> Engine:
    config = EngineConfig(max_model_len=200, kv_slots=8192, max_nodes=24)
    return start_engine(TargetModel.from_model(tiny("llama", SEED_OF_A_LIVELY_MODEL), config), config)


@pytest.fixture
def answering(engine: Engine) -> Answering:
    return Answering(engine, words(), 24, 0.6, words_said)


@pytest.fixture
def question() -> Question:
    return Question(np.random.default_rng(0).integers(3, VOCAB_SIZE, 12).astype(np.int32), 24)


def reply(question: int = 0, **changed: int | float | None) -> Trajectory:
    fields = {"tokens": 12, "forwards": 4, "drafted": 20, "accepted": 8, "seconds": 0.5, "answer": 1, "fingerprint": 7}
    return Trajectory(question=question, **(fields | changed))  # type: ignore[arg-type]


def test_replies_in_sequence_and_side_by_side_are_the_same_whoever_drafts(
    answering: Answering, question: Question
) -> None:
    contenders = [one for one in method_contenders(16) if one.label in ("none", "stand, 16", "stand, 16, cold store")]
    assert len(contenders) == 3
    found = {one.label: answering.in_sequence(one, 0, question, 3) for one in contenders}
    found["side by side"] = answering.side_by_side(contenders[1], 0, question, 3)
    plain = found["none"]
    assert len({one.fingerprint for one in plain}) == 3  # each has a seed of its own
    for replies in found.values():
        assert [one.fingerprint for one in replies] == [one.fingerprint for one in plain]
        assert [one.answer for one in replies] == [one.answer for one in plain]
    assert acceptance_length(plain) == 1
    warm, cold = found["stand, 16"], found["stand, 16, cold store"]
    assert warm[0].forwards == cold[0].forwards
    assert sum(one.accepted for one in found["side by side"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("table", ["drawing", "store"])
def test_every_variant_of_a_table_runs_and_all_but_rejection_give_the_plain_tokens(
    answering: Answering, question: Question, table: str
) -> None:
    contenders = drawing_contenders(16) if table == "drawing" else store_contenders(16, 0.6)
    found = {one.label: answering.in_sequence(one, 0, question, 2) for one in contenders}
    prints = {label: [one.fingerprint for one in replies] for label, replies in found.items()}
    first = next(iter(prints.values()))
    assert [label for label, own in prints.items() if own != first and "rejection" not in label] == []


def test_figures_are_pooled_and_votes_are_counted_by_question() -> None:
    questions = [Question(np.zeros(1, np.int32), 1), Question(np.zeros(1, np.int32), 2)]
    replies = [
        reply(answer=1),
        reply(answer=1, tokens=28),
        reply(answer=5),
        reply(1, answer=2),
        reply(1, answer=None),
        reply(1, answer=None),
    ]
    assert acceptance_length(replies) == pytest.approx((5 * 12 + 28) / 24)
    assert tokens_per_second(replies) == pytest.approx(88 / 3)
    assert accuracy(replies, questions) == pytest.approx(3 / 6)
    assert majority_accuracy(replies, questions) == 1
    assert majority_accuracy([reply(answer=None)], questions) == 0


def test_tables_show_prefixes_ratios_and_who_gave_other_tokens() -> None:
    questions = [Question(np.zeros(1, np.int32), 1)]
    plain = [reply(forwards=12, drafted=0, accepted=0, answer=answer) for answer in (2, 1, 1, 1)]
    quick = [reply(seconds=0.25, forwards=forwards) for forwards in (6, 2, 2, 2)]
    other = [reply(fingerprint=8) for _ in range(4)]
    replies = Replies(questions, {"none": plain, "quick": quick, "other": other}, 4)
    sequence = render_sequence(replies)
    assert "| quick | 2.00 | 2.00 | 4.00 | 2.00 | 6.7 |" in sequence
    assert "| other (other tokens) |" in sequence
    assert "1: 0% alone, 0% by majority, 0% in one at least; 4: 75% alone, 100% by majority, 100%" in sequence
    batches = render_batches({4: replies})
    assert "| quick | 4.00 | 2.00 |" in batches
    assert "4: 75% alone, 100% by majority" in batches
    assert "| quick | 4.000 | 48 | 6.7 | 40.0% |" in render_plain(replies)


def test_questions_and_answers_are_read_in_gsm8k_form(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [{"prompt": "How many?", "reference": "Many.\n#### 1,234"}, {"prompt": "And?", "reference": "None."}]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    plain = PreTrainedTokenizerFast(tokenizer_object=words())
    (one,) = questions_of(file, 1, word_problems(plain), 100)
    assert one.result == 1234
    assert len(one.prompt) > 10
    with pytest.raises(ValueError, match="line 2"):
        questions_of(file, 2, word_problems(plain), 100)
    assert read_number("So:\n#### $18.00\nMore") == 18
    assert read_number("#### -7") == -7
    assert read_number("42") is None
    assert read_last_number("She has 1,200 and sells 30, so $1,170.00.") == 1170
    assert read_last_number("#### 7\nor 8") == 7
    assert read_last_number("About 3.5") is None
    plain.chat_template = "w1 {% for message in messages %}{{ message.content }}{% endfor %} w2"
    (asked,) = questions_of(file, 1, word_problems(plain), 100)
    assert asked.prompt[[0, -1]].tolist() == [1, 2]


@pytest.mark.slow
def test_gander_bench_patterns_writes_the_batch_table_of_given_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"prompt": "2 + 2?", "reference": "#### 4"}), encoding="utf-8")
    monkeypatch.setattr(patterns, "BATCHES", (2,))
    options = ["--problems", "1", "--max-tokens", "6", "--nodes", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["bench", "patterns", "batch", *options, "--questions", str(questions)])
    assert result.exit_code == 0, result.output
    page = (tmp_path / "stand.md").read_text(encoding="utf-8")
    assert "`gander bench patterns batch" in page
    assert "batch 2: τ" in page
    assert "| stand, 8 |" in page
    assert "other tokens" not in page
    assert "by majority" in page


def test_an_unknown_part_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        patterns.parse(["sequence", "nonsense"])
    assert "nonsense" in capsys.readouterr().err
    assert patterns.parse([]).parts == list(patterns.PARTS)
