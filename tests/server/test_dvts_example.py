"""The DVTS example runs against a real server, and its answer does not depend on who drafts."""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from decoding.training.texts.prompts import held_out_exercises
from tests.server.servers import RunningServer

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "dvts.py"


@pytest.fixture(scope="module")
def dvts() -> Any:
    spec = spec_from_file_location("dvts", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["dvts"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_method_finds_the_same_text_and_only_drafting_saves_forwards(real: RunningServer, dvts: Any) -> None:
    prompt = held_out_exercises("reasoning", 1, 1)[0].prompt
    searches = {
        method: dvts.Search(real.client(), real.model, method, width=2, votes=1, steps=2, max_tokens=40, nodes=40)
        for method in ("none", "stand")
    }
    found = {method: search.grow(prompt, 0) for method, search in searches.items()}
    assert found["none"] == found["stand"]
    assert found["none"].endswith("\n\n")
    assert searches["none"].tokens == searches["stand"].tokens > 0
    assert searches["stand"].forwards < searches["none"].forwards


def test_questions_make_a_table_with_a_row_for_each_method(
    real: RunningServer, dvts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exercise = held_out_exercises("reasoning", 1, 1)[0]
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps({"prompt": exercise.prompt, "reference": exercise.reference}), encoding="utf-8")
    size = ["--subtrees", "1", "--width", "1", "--votes", "1", "--steps", "1", "--max-tokens", "100"]
    options = ["--questions", str(file), "--methods", "lookup,stand", "--url", f"{real.url}/v1", "--model", real.model]
    assert dvts.main([*options, *size]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:]] == ["| lookup", "| stand"]
    assert all(line.endswith(" of 1 |") for line in lines[2:])
