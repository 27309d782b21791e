"""Public prompt sets: what is asked about a row, and files that have none."""

import json
from pathlib import Path
from typing import Any

import pytest

from decoding.errors import ConfigError
from decoding.training.public_prompts import (
    LONGEST_ARTICLE,
    LONGEST_EDIT,
    Prompt,
    read_prompts,
    read_text,
    training_prompts,
)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


def test_prompts_are_spread_over_their_file_and_long_programs_are_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k_test.jsonl", [{"prompt": f"What is {number} and 1?"} for number in range(24)])
    programs = ["x" * (LONGEST_EDIT + 1), "def one(): ...", "def two(): ...", "def three(): ..."]
    write(tmp_path / "classeval.jsonl", [{"reference": program} for program in programs])
    found = read_prompts(tmp_path, ("gsm8k", "humaneval", "edit"), 4)
    assert list(found) == ["gsm8k", "edit"], "a set without a file is left out"
    asked = [prompt.turns[0].split("?")[0] for prompt in found["gsm8k"]]
    assert asked == [f"What is {number} and 1" for number in (0, 6, 12, 18)]
    assert [prompt.prediction for prompt in found["edit"]] == [f"```python\n{text}\n```" for text in programs[1::2]]
    trained_on = training_prompts(tmp_path, 4)
    assert [prompt.prediction for prompt in trained_on["edit"]] == [f"```python\n{programs[2]}\n```"]
    assert "gsm8k" not in trained_on, "it has a file of its own"


def test_turns_long_texts_and_records_are_asked(tmp_path: Path) -> None:
    write(tmp_path / "mt_bench.jsonl", [{"prompt": "a", "turns": ["a", "b"]}, {"prompt": "odd"}, {"prompt": "c"}])
    write(tmp_path / "wikitext2_test.jsonl", [{"prompt": "z" * (LONGEST_ARTICLE + 1)}])
    write(tmp_path / "wikitext2_valid_prompts_800c.jsonl", [{"prompt": "A lobster."}])
    found = read_prompts(tmp_path, ("mt_bench", "summary", "json"), 9)
    assert found["mt_bench"] == [Prompt(("a", "b")), Prompt(("c",))]
    assert found["summary"][0].turns[0].count("z") == LONGEST_ARTICLE
    assert found["json"][0].schema is not None


def test_folders_and_sets_that_are_none_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no prompts in"):
        read_prompts(tmp_path, ("gsm8k",), 4)
    with pytest.raises(ConfigError, match="no workload poems"):
        read_prompts(tmp_path, ("gsm8k", "poems"), 4)
    write(tmp_path / "humaneval.jsonl", [{"text": "no prompt"}])
    with pytest.raises(ConfigError, match=r"humaneval\.jsonl has a row"):
        read_prompts(tmp_path, ("humaneval",), 4)


def test_a_text_is_a_file_of_text_or_of_rows(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b")
    write(tmp_path / "rows.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    assert (read_text(tmp_path / "text"), read_text(tmp_path / "rows.jsonl")) == ("a b", "a\nb")
    with pytest.raises(ConfigError, match="has no text"):
        read_text(tmp_path / "none")
