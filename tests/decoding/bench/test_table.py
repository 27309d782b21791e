"""The page: tables, markers, expectations."""

from decoding.bench.comparison import Comparison
from decoding.bench.shapes import ROWS, ShapeResult, render_shapes
from decoding.bench.tables.expectations import check_comparisons, check_shapes
from decoding.bench.tables.figures import Figures
from decoding.bench.tables.report import replace_section
from decoding.bench.tables.table import render


def figures(label: str, budget: int | None, tau: float, rate: float) -> Figures:
    return Figures(
        label=label,
        budget=budget,
        tokens=round(100 * tau),
        forwards=100,
        drafted=100 * (budget or 0),
        accepted=round(100 * (tau - 1)),
        seconds=100 * tau / rate,
        rates=[rate, rate, rate],
    )


def comparison(spine_tau: float, spine_rate: float, differing: list[str]) -> Comparison:
    rows = [
        figures("none", None, 1.0, 100.0),
        figures("spine", 16, spine_tau - 0.5, spine_rate),
        figures("spine", 60, spine_tau, spine_rate / 2),
        figures("spine without bigram", 60, 9.0, 900.0),
        figures("recycle", 60, 2.5, 110.0),
        figures("auto", None, 2.0, 150.0),
        figures("generate", None, 1.0, 50.0),
        figures("generate + prompt lookup", None, 1.4, 80.0),
    ]
    return Comparison(
        workload="code",
        temperature=0.0,
        prompts=3,
        prompt_tokens=300,
        figures=rows,
        differing=differing,
        generate_same=3,
    )


def test_the_table_has_a_row_for_everybody_with_all_its_ratios() -> None:
    page = render([comparison(3.0, 160.0, [])])
    assert "| spine | 16 | 2.50 | 16.0 | 9% | 160 | 1.60 | 3.20 | 2.00 |" in page
    assert "| none |  | 1.00 |  |  | 100 | 1.00 | 2.00 | 1.25 |" in page
    assert "| code | 0 | 100 | 2.00 | 3.00 | 2.50 (recycle) | 1.60 (budget 16) | 1.50 | 3.00 |" in page
    assert "gave the same tokens on 3 of 3 prompts" in page


def test_other_tokens_than_plain_decoding_are_shouted() -> None:
    assert "**Tokens differ from `none`**: lookup at 8." in render([comparison(3.0, 160.0, ["lookup at 8"])])


def test_expectations_name_what_was_missed() -> None:
    assert all(one.is_met for one in check_comparisons([comparison(3.0, 160.0, [])]))
    missed = [one.sentence for one in check_comparisons([comparison(2.0, 140.0, ["lookup at 8"])]) if not one.is_met]
    assert missed == [
        "code at temperature 0: every method gives other tokens from lookup at 8",
        "code at temperature 0: τ at 60 nodes is 2.00 with spine, 2.50 with recycle",
        "code at temperature 0: spine at its best budget (16) runs 1.40 times none, asked 1.5",
    ]


def test_a_section_is_replaced_and_the_prose_around_it_stays() -> None:
    page = replace_section("# Page\n\nBefore.\n", "table", "old")
    page = replace_section(page + "\nAfter.\n", "table", "new")
    assert page == "# Page\n\nBefore.\n\n<!-- table: begin -->\nnew\n<!-- table: end -->\n\nAfter.\n"
    assert replace_section(page, "load", "x").count("begin") == 2


def test_the_shape_table_has_both_its_parts() -> None:
    result = ShapeResult(
        dtype="float32",
        parameters=109_000_000,
        context=256,
        none_rate=70.0,
        generate_rate=35.0,
        ratio=2.0,
        plain_step_seconds=0.0142,
        verify_ratios=[1.0] * len(ROWS),
    )
    page = render_shapes([result])
    assert "| float32 | 256 | 70 | 35 | 2.00 |" in page
    assert "| float32 | 14.2 | 1.00 |" in page
    assert [one.is_met for one in check_shapes([result])] == [True]
