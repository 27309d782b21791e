"""The command on the bundled pair, a few tokens of one prompt: every contestant gives the tokens of `none`."""

import json
from pathlib import Path

import pytest

from decoding.bench.__main__ import main
from decoding.bench.draft_trees import __main__ as draft_trees
from decoding.bench.draft_trees.memory import measure_memory
from decoding.bench.draft_trees.ways import ablation_ways


@pytest.mark.slow
def test_the_command_leaves_tables_and_every_raw_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_trees, "SWEPT", (("wikitext", 0.0, True), ("code", 0.7, False)))
    given = ["draft-trees", "ablation", "--prompts", "1", "--max-tokens", "32", "--out", str(tmp_path)]
    assert main(given) == 0
    page = (tmp_path / "dynamic_trees.md").read_text(encoding="utf-8")
    assert "+ breadth, depth and history" in page
    assert "wikitext" not in page, "its prompt file is not there"
    raw = json.loads((tmp_path / "dynamic_trees.json").read_text(encoding="utf-8"))["ablation"]
    assert raw["command"].startswith("python -m decoding.bench.draft_trees ablation")
    (found,) = raw["figures"]
    assert [row["label"] for row in found["figures"]] == [way.label for way in ablation_ways()]
    assert found["differing"] == []
    assert any(0 < row["accepted"] < row["drafted"] for row in found["figures"])


@pytest.mark.slow
def test_other_tokens_fail_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.bench.comparison.same_tokens", lambda *_: False)
    given = ["draft-trees", "ablation", "--prompts", "1", "--max-tokens", "4", "--workloads", "stories"]
    assert main([*given, "--out", str(tmp_path)]) == 1
    page = (tmp_path / "dynamic_trees.md").read_text(encoding="utf-8")
    assert "**Tokens differ from `none`**" in page
    assert "stories" in page
    assert "code" not in page


@pytest.mark.slow
def test_a_fresh_process_tells_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("decoding.bench.draft_trees.memory.CASES", (("dynamic", "auto"),))
    (found,) = measure_memory()
    assert found.draft_slots == found.slots > 0
    assert found.peak_bytes > found.draft_weight_bytes + 600 * (found.slot_bytes + found.draft_slot_bytes)
