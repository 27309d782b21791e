"""Renders a replay as Markdown: a table for each workload and temperature, the method's gaps, and differing tokens."""

from __future__ import annotations

from collections.abc import Sequence

from decoding.bench.replay.rows import NONE, Row
from decoding.bench.tables.table import table


def render(rows: Sequence[Row], judged: str) -> str:
    """All tables, and a comparison of the method `judged` with the others, where it was measured."""
    settings = dict.fromkeys((row.temperature, row.workload) for row in rows)
    parts = [
        _table([row for row in rows if (row.temperature, row.workload) == setting])
        for setting in sorted(settings, key=lambda setting: setting[0])  # the sort is stable
    ]
    return "\n\n".join([*parts, *_judgement(rows, judged), *_difference(rows)])


def differing(rows: Sequence[Row]) -> list[Row]:
    """The rows that did not give the tokens of `none`."""
    plain = {(row.workload, row.temperature): row.fingerprint for row in rows if row.method == NONE}
    return [row for row in rows if row.fingerprint != plain.get((row.workload, row.temperature), row.fingerprint)]


def _table(rows: Sequence[Row]) -> str:
    drafted = [row for row in rows if row.method != NONE]
    budgets = sorted({row.nodes for row in drafted})
    longest = {nodes: max(row.tau for row in drafted if row.nodes == nodes) for nodes in budgets}
    cells = []
    for method in dict.fromkeys(row.method for row in drafted):
        found = {row.nodes: row for row in drafted if row.method == method}
        cells.append([method, *(_cell(found[each], longest[each]) if each in found else "" for each in budgets)])
    made = table(["method", *(f"{nodes} nodes" for nodes in budgets)], cells)
    return f"**{rows[0].workload}, temperature {rows[0].temperature:g}** (τ / nodes a step)\n\n{made}"


def _cell(row: Row, longest: float) -> str:
    tau = f"{row.tau:.2f}"
    return f"{f'**{tau}**' if row.tau == longest else tau} / {row.nodes_per_step:.1f}"


def _judgement(rows: Sequence[Row], judged: str) -> list[str]:
    """The places where the method is behind the best other one at the same budget, the largest gap first."""
    pairs = []
    for row in rows:
        others = [other for other in rows if other.method not in (judged, NONE) and other.key[1:] == row.key[1:]]
        if row.method == judged and others:
            pairs.append((row, max(others, key=lambda other: other.tau)))
    if not pairs:
        return []
    behind = sorted((pair for pair in pairs if pair[0].tau < pair[1].tau), key=lambda pair: pair[0].tau / pair[1].tau)
    num_level = len(pairs) - len(behind)
    told = f"`{judged}` has at least the τ of every other method at {num_level} of {len(pairs)} places."
    cells = [
        [
            f"{row.workload}, {row.temperature:g}, {row.nodes}",
            f"{row.tau:.2f}",
            f"{best.method} {best.tau:.2f}",
            f"{row.tau / best.tau:.3f}",
        ]
        for row, best in behind
    ]
    head = ("behind on, temperature, nodes", judged, "best other", "ratio")
    return [told, *([table(head, cells)] if cells else [])]


def _difference(rows: Sequence[Row]) -> list[str]:
    found = [f"{row.method} at {row.nodes} on {row.workload}, {row.temperature:g}" for row in differing(rows)]
    return [f"**Tokens differ from `none`**: {'; '.join(found)}."] if found else []
