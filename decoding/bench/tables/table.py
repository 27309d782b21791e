"""Renders comparisons as Markdown. Pure.

Invariant: every number is a property of `Figures`, only rounded here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from decoding.bench.comparison import Comparison
from decoding.bench.tables.figures import Figures
from decoding.bench.tables.markdown import table
from decoding.bench.variant import AUTO, SPINE

GENERATE, GENERATE_LOOKUP = "generate", "generate + prompt lookup"
_COLUMNS = (
    "method",
    "budget",
    "τ",
    "nodes a step",
    "accepted",
    "tokens/s",
    "× none",
    "× generate",
    "× generate + lookup",
)
_SUMMARY = (
    "workload", "T", "none tokens/s", "none ÷ generate", "spine τ at largest budget", "best other τ there",
    "spine's best × none", "auto × none", "auto × generate",
)  # fmt: skip


def render(comparisons: Sequence[Comparison]) -> str:
    """A summary of all comparisons, then a table for each."""
    parts = [table(_SUMMARY, [_summary_row(one) for one in comparisons])]
    for one in comparisons:
        parts.append(f"### {title(one)}\n\n{_sentence(one)}")
        parts.append(table(_COLUMNS, [_row(one, figures) for figures in one.figures]))
    return "\n\n".join(parts)


def best(rows: Iterable[Figures], none: Figures) -> Figures | None:
    """The row with the highest ratio to `none`."""
    return max(rows, key=lambda row: row.ratio_to(none), default=None)


def spine_rows(one: Comparison) -> list[Figures]:
    return [row for row in one.figures if row.label == SPINE]


def other_methods(one: Comparison, budget: int | None) -> list[Figures]:
    """Our methods at that budget, except the spine method and its ablations."""
    return [row for row in one.figures if row.budget == budget and budget and not row.label.startswith(SPINE)]


def title(one: Comparison) -> str:
    return f"{one.workload}, temperature {one.temperature:g}"


def _sentence(one: Comparison) -> str:
    same = "The tokens of every row of ours equal those of `none`."
    if one.differing:
        same = f"**Tokens differ from `none`**: {', '.join(one.differing)}."
    if one.generate_same is not None:
        same += f" Greedy `generate` gave the same tokens on {one.generate_same} of {one.prompts} prompts."
    return f"{one.prompts} prompts of {one.prompt_tokens} tokens in all, {one.none.tokens} tokens generated. {same}"


def _row(one: Comparison, row: Figures) -> list[str]:
    has_draft = row.drafted > 0
    return [
        row.label,
        "" if row.budget is None else str(row.budget),
        f"{row.tau:.2f}",
        f"{row.nodes_per_step:.1f}" if has_draft else "",
        f"{row.acceptance:.0%}" if has_draft else "",
        f"{row.tokens_per_second:.0f}",
        f"{row.ratio_to(one.none):.2f}",
        _ratio(row, one.find(GENERATE)),
        _ratio(row, one.find(GENERATE_LOOKUP)),
    ]


def _summary_row(one: Comparison) -> list[str]:
    rows, auto, generate = spine_rows(one), one.find(AUTO), one.find(GENERATE)
    widest = max(rows, key=lambda row: row.budget or 0, default=None)
    rival = max(other_methods(one, widest.budget), key=lambda row: row.tau, default=None) if widest else None
    fastest = best(rows, one.none)
    return [
        one.workload,
        f"{one.temperature:g}",
        f"{one.none.tokens_per_second:.0f}",
        _ratio(one.none, generate),
        f"{widest.tau:.2f}" if widest else "",
        f"{rival.tau:.2f} ({rival.label})" if rival else "",
        f"{_ratio(fastest, one.none)} (budget {fastest.budget})" if fastest else "",
        _ratio(auto, one.none),
        _ratio(auto, generate),
    ]


def _ratio(row: Figures | None, other: Figures | None) -> str:
    return f"{row.ratio_to(other):.2f}" if row and other else ""
