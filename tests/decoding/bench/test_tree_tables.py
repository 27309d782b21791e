"""The tables of draft-model trees: metrics by their definitions, sizes in between, every contestant found."""

import re
from pathlib import Path

import numpy as np
import pytest

from decoding.bench.comparison import Comparison
from decoding.bench.contestant import Reply
from decoding.bench.draft_trees.memory import Footprint
from decoding.bench.draft_trees.plot import plot_sweeps
from decoding.bench.draft_trees.tables import (
    FAMILIES,
    at_nodes,
    equal_nodes,
    render_ablation,
    render_main,
    render_memory,
    render_sweeps,
)
from decoding.bench.draft_trees.ways import Way, ablation_ways, main_ways, sweep_ways
from decoding.bench.tables.figures import Figures, pool
from decoding.bench.tables.report import Report


def figures(label: str, nodes: float = 0.0, tau: float = 1.0) -> Figures:
    return Figures(
        label=label,
        budget=None,
        tokens=round(100 * tau),
        forwards=100,
        drafted=round(100 * nodes),
        accepted=round(100 * (tau - 1)),
        seconds=2.0,
        rates=[50.0 * tau, 50.0 * tau],
        first_token_seconds=0.5,
        draft_seconds=0.49,
        target_seconds=0.98,
        cpu_seconds=[2.0, 1.0 / tau],
    )


def comparison(rows: list[Figures]) -> Comparison:
    return Comparison(
        workload="code",
        temperature=0.0,
        prompts=2,
        prompt_tokens=60,
        figures=rows,
        differing=[],
        generate_same=None,
    )


def comparison_of(ways: list[Way]) -> Comparison:
    """Sizes and tokens per iteration rise from row to row."""
    first, *others = ways
    return comparison(
        [figures(first.label), *(figures(way.label, 2.0 * i, 1.0 + i) for i, way in enumerate(others, 1))]
    )


def test_every_metric_is_what_the_glossary_says() -> None:
    tokens = np.arange(10, dtype=np.int32)
    replies = [
        Reply(tokens=tokens, seconds=1.0, forwards=5, drafted=20, accepted=5, first_token_seconds=0.1,
              draft_seconds=0.08, target_seconds=0.4),
        Reply(tokens=tokens[:6], seconds=0.5, forwards=3, drafted=12, accepted=3, first_token_seconds=0.3,
              draft_seconds=0.04, target_seconds=0.2),
    ]  # fmt: skip
    row = pool("dynamic", None, replies)
    assert row.acceptance == 8 / 32
    assert row.tau == 16 / 8
    assert row.path_length == 8 / 8
    assert row.time_to_first_token == pytest.approx(0.2)
    assert row.time_per_output_token == pytest.approx((0.9 + 0.2) / (9 + 5))
    assert row.draft_seconds_per_step == pytest.approx(0.12 / 6)
    assert row.target_seconds_per_step == pytest.approx(0.6 / 6)


def test_tokens_at_a_size_lie_between_the_best_measured_sizes() -> None:
    rows = [figures("a", 2.0, 2.0), figures("b", 4.0, 1.5), figures("c", 6.0, 3.0)]
    assert at_nodes(rows, 1.0) == pytest.approx(1.5)  # half of the way from nothing drafted
    assert at_nodes(rows, 4.0) == pytest.approx(2.5)  # b is a waste of nodes and does not count
    assert at_nodes(rows, 6.0) == pytest.approx(3.0)
    assert at_nodes(rows, 6.5) is None
    assert at_nodes([], 1.0) is None


def test_labels_are_one_ways_own_and_every_size_is_of_one_family() -> None:
    for ways in (main_ways(True), ablation_ways(), sweep_ways()):
        labels = [way.label for way in ways]
        assert len(set(labels)) == len(labels)
    for way in sweep_ways()[1:]:
        families = [name for name, is_in in FAMILIES if is_in(way.label)]
        assert len(families) == ("τh" not in way.label), way.label
    assert {way.label for way in main_ways(True)} - {way.label for way in main_ways(False)} == {"stand"}


def test_the_main_tables_have_every_row_and_name_the_target() -> None:
    one = comparison([figures("none"), figures("dynamic, own budget", 6.0, 3.0)])
    page = render_main([one], "gosling widened to 32M parameters")
    assert "| dynamic, own budget | 150 (3.00) |" in page
    assert (
        "| dynamic, own budget | 33% | 3.00 | 2.00 | 6.0 | 100 | 250.0 | 5.03 | 5.00 | 10.00 | 150 | 3.00 | 2.00 |"
        in page
    )
    assert "| none |  | 1.00 |  |  | 100 | 250.0 | 15.31 |  | 10.00 | 50 | 1.00 | 1.00 |" in page
    assert page.count("gosling widened to 32M parameters") == 2


def test_the_ablation_is_told_against_the_fixed_tree() -> None:
    page = render_ablation([comparison_of(ablation_ways())])
    assert "| fixed tree | 50% | 2.00 | 1.00 | 2.0 | 100 | 2.00 | 1.50 | +0.0% |" in page
    assert "| + breadth, depth and history | 50% | 6.00 | 5.00 | 10.0 | 300 | 6.00 | 3.50 | +200.0% |" in page


def test_the_sweeps_table_and_plot_have_every_setting(tmp_path: Path) -> None:
    one = comparison_of(sweep_ways())
    page = render_sweeps([one])
    assert all(f"| {way.label} |" in page for way in sweep_ways())
    assert re.search(r"\| code, temperature 0: 2 \| 2\.00 \|", equal_nodes([one]))
    plot_sweeps([one], tmp_path / "sweeps.svg")
    assert "mean verified nodes" in (tmp_path / "sweeps.svg").read_text(encoding="utf-8")


def test_memory_is_told_against_the_first_row() -> None:
    def footprint(method: str, draft_slots: int, peak: int) -> Footprint:
        return Footprint(
            method=method,
            slots=100,
            draft_slots=draft_slots,
            slot_bytes=2048,
            draft_slot_bytes=512,
            draft_weight_bytes=2**20 * bool(draft_slots),
            peak_bytes=peak * 2**20,
        )

    page = render_memory([footprint("none", 0, 400), footprint("dynamic", 100, 410)])
    assert "| none | none | 0.0 | 100 | 0 | 2048 | 512 | 400.0 | +0.0% |" in page
    assert "| dynamic | loaded | 1.0 | 100 | 100 | 2048 | 512 | 410.0 | +2.5% |" in page


def test_a_report_may_have_a_page_of_its_own(tmp_path: Path) -> None:
    Report(tmp_path, "a machine", "a command", "dynamic_trees").write("main", "text", [1])
    assert "`a command` on a machine." in (tmp_path / "dynamic_trees.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dynamic_trees.json", "dynamic_trees.md"]
