"""Many samples of one problem: questions and answers, the table, and the command on the bundled model."""

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

from decoding.bench.contestant import Reply
from decoding.bench.samples.__main__ import samples_of
from decoding.bench.samples.questions import encoder, read_number, read_questions
from decoding.bench.samples.tables import differing, majority, render
from decoding.errors import ConfigError
from server.cli import app
from tests.models import VOCAB_SIZE


def replies(forwards: list[int], seconds: float, last: int = 7) -> list[Reply]:
    tokens = np.array([3, 4, 5, last], np.int32)
    return [Reply(tokens=tokens, seconds=seconds, forwards=count, drafted=10) for count in forwards]


def test_the_table_has_every_number_of_samples_and_who_gave_other_tokens() -> None:
    found = {
        "none": [samples_of("none", replies([4] * 4, 0.5))] * 2,
        "stand": [samples_of("stand", replies([4, 2, 1, 1], 0.25))] * 2,
        "other": [samples_of("other", replies([4] * 4, 0.5, last=8))] * 2,
    }
    assert list(found["none"][0].figures) == [1, 4]
    assert differing(found) == ["other"]
    page = render(found, [[2, 1, 1, None], [5, None, 3, 4]], [1, 4])
    assert "| method | 1: τ | 1: × none | 4: τ | 4: × none | nodes a step |" in page
    assert "| stand | 1.00 | 2.00 | 2.00 | 2.00 | 5.0 |" in page
    assert "1: 0% alone, 0% by majority, 0% pass@1; 4: 38% alone, 50% by majority, 100% pass@4" in page
    assert "**Tokens differ from `none`**: other." in page


def test_votes_are_counted_and_the_earliest_wins_a_tie() -> None:
    assert majority([1, 2, 2, None]) == 2
    assert majority([5, 3]) == 5
    assert majority([None]) is None


def test_questions_and_answers_are_read_in_gsm8k_form(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    rows = [{"prompt": "How many?", "reference": "Many.\n#### 1,234"}, {"prompt": "And?", "reference": "None."}]
    file.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    words = Tokenizer(WordLevel({f"w{token}": token for token in range(VOCAB_SIZE)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()  # type: ignore[assignment]
    plain = PreTrainedTokenizerFast(tokenizer_object=words)
    (one,) = read_questions(file, 1, encoder(plain), 100)
    assert one.result == 1234
    assert len(one.prompt) > 10
    with pytest.raises(ConfigError, match="line 2"):
        read_questions(file, 2, encoder(plain), 100)
    assert read_number("So:\n#### $18.00\nMore") == 18
    assert read_number("#### -7") == -7
    assert read_number("Two.\n#### 0\nor 8") == 0
    assert read_number("She has 1,200 and sells 30, so $1,170.00.") == 1170
    assert read_number("About 3.5") is None
    assert read_number("None") is None
    plain.chat_template = "w1 {% for message in messages %}{{ message.content }}{% endfor %} w2"
    (asked,) = read_questions(file, 1, encoder(plain), 100)
    assert asked.prompt[[0, -1]].tolist() == [1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("has_file", [True, False])
def test_the_command_writes_a_table_of_the_problems(tmp_path: Path, has_file: bool) -> None:
    questions = tmp_path / "questions.jsonl"
    questions.write_text(json.dumps({"prompt": "2 + 2?", "reference": "#### 4"}), encoding="utf-8")
    options = ["--problems", "1", "--samples", "4", "--max-tokens", "6", "--nodes", "8", "--out", str(tmp_path)]
    given = ["bench", "samples", *options, *(["--questions", str(questions)] if has_file else [])]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    page = (tmp_path / "samples.md").read_text(encoding="utf-8")
    assert "`gander bench samples" in page
    assert "| stand |" in page
    assert "differ" not in page
    assert "pass@4" in page
