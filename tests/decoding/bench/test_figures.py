"""A table's numbers on replies whose figures are known, and its page."""

from pathlib import Path

import numpy as np
import pytest

from decoding.bench.contestant import Reply
from decoding.bench.tables.figures import pool, same_tokens
from decoding.bench.tables.report import Report, replace_section


def reply(num_tokens: int, seconds: float, forwards: int, drafted: int = 0, accepted: int = 0) -> Reply:
    tokens = np.arange(num_tokens, dtype=np.int32)
    return Reply(tokens=tokens, seconds=seconds, forwards=forwards, drafted=drafted, accepted=accepted)


def test_counts_are_pooled_before_they_are_divided() -> None:
    figures = pool("spine", [reply(10, 1.0, 10, 80, 0), reply(90, 3.0, 10, 80, 80)])
    assert figures.tau == 5.0  # the mean of 1 and 9 would hide that one reply is nine times as long
    assert figures.nodes_per_step == 8.0
    assert figures.accepted == 80
    assert figures.tokens_per_second == 25.0


def test_a_ratio_is_the_median_over_rounds_of_the_same_rounds_rates() -> None:
    none = pool("none", [reply(10, 1.0, 10), reply(10, 2.0, 10), reply(10, 10.0, 10)])
    drafted = pool("spine", [reply(10, 0.5, 5), reply(10, 1.0, 5), reply(10, 1.0, 5)])
    assert drafted.ratio_to(none) == 2.0
    assert none.ratio_to(none) == 1.0


def test_ratios_of_contestants_with_other_rounds_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        pool("spine", [reply(10, 1.0, 5)]).ratio_to(pool("none", [reply(1, 1.0, 1)] * 2))


def test_one_other_token_is_another_reply() -> None:
    assert same_tokens([reply(4, 1.0, 4)], [reply(4, 2.0, 2)])
    assert not same_tokens([reply(4, 1.0, 4)], [reply(5, 1.0, 5)])


def test_a_section_is_replaced_and_the_prose_around_it_stays() -> None:
    page = replace_section("# Page\n\nBefore.\n", "table", "old")
    page = replace_section(page + "\nAfter.\n", "table", "new")
    assert page == "# Page\n\nBefore.\n\n<!-- table: begin -->\nnew\n<!-- table: end -->\n\nAfter.\n"
    assert replace_section(page, "load", "x").count("begin") == 2


def test_a_report_has_a_page_and_its_figures(tmp_path: Path) -> None:
    Report(tmp_path, "a machine", "a command", "samples").write("main", "text", [1])
    assert "`a command` on a machine." in (tmp_path / "samples.md").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.json", "samples.md"]
