"""Renders comparisons of draft-model trees as Markdown, in the form of DynaTree's Tables 1 to 5. Pure.

Invariant: every number is a property of `Figures`, computed alike for every method; only numbers between measured
sizes are interpolated, and marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from decoding.bench.comparison import Comparison
from decoding.bench.draft_trees.memory import Footprint
from decoding.bench.draft_trees.ways import (
    ABLATION,
    ABLATION_NODES,
    DYNAMIC,
    FIXED,
    FIXED_CUT,
    LINEAR,
    NONE,
    PAPER,
    dynamic,
)
from decoding.bench.tables.figures import Figures
from decoding.bench.tables.markdown import table
from decoding.bench.tables.table import title

FIXED_STEP = next(iter(ABLATION))
EQUAL_NODES = (2, 3, 4, 6, 8)
_MEGABYTE = 2.0**20


def render_main(comparisons: Sequence[Comparison], target: str) -> str:
    """Table 1 over all workloads, then Tables 2 and 3 together for each. target: the name of the model."""
    parts = [f"#### Throughput on {target}: tokens/s (× none)", throughput(comparisons)]
    for one in comparisons:
        parts += [f"#### {title(one)}, {target}", f"{sentence(one)}", verification(one)]
    return "\n\n".join(parts)


def sentence(one: Comparison) -> str:
    same = "The tokens of every row equal those of `none`."
    if one.differing:
        same = f"**Tokens differ from `none`**: {', '.join(one.differing)}."
    return f"{one.prompts} prompts of {one.prompt_tokens} tokens in all, {one.none.tokens} tokens generated. {same}"


def throughput(comparisons: Sequence[Comparison]) -> str:
    """Table 1: a row for each method, a column for each workload."""
    labels = list(dict.fromkeys(row.label for one in comparisons for row in one.figures))
    columns = ["method", *map(title, comparisons)]
    rows = []
    for label in labels:
        cells = [label]
        for one in comparisons:
            row = one.find_label(label)
            cells.append(f"{row.tokens_per_second:.0f} ({row.ratio_to(one.none):.2f})" if row else "")
        rows.append(cells)
    return table(columns, rows)


def verification(one: Comparison) -> str:
    """Acceptance, progress and latency of every method on one workload; seconds in milliseconds."""
    columns = (
        "method", "acceptance", "tokens per iteration", "path length", "nodes an iteration", "iterations", "TTFT",
        "TPOT", "draft ms", "target ms", "tokens/s", "× none", "× none, processor time",
    )  # fmt: skip
    return table(columns, [_row(row, one.none) for row in one.figures])


def _row(row: Figures, none: Figures) -> list[str]:
    has_draft = row.drafted > 0
    return [
        row.label,
        f"{row.acceptance:.0%}" if has_draft else "",
        f"{row.tau:.2f}",
        f"{row.path_length:.2f}" if has_draft else "",
        f"{row.nodes_per_step:.1f}" if has_draft else "",
        str(row.forwards),
        f"{1e3 * row.time_to_first_token:.1f}",
        f"{1e3 * row.time_per_output_token:.2f}",
        f"{1e3 * row.draft_seconds_per_step:.2f}" if has_draft else "",
        f"{1e3 * row.target_seconds_per_step:.2f}",
        f"{row.tokens_per_second:.0f}",
        f"{row.ratio_to(none):.2f}",
        f"{row.cpu_ratio_to(none):.2f}",
    ]


def render_ablation(comparisons: Sequence[Comparison]) -> str:
    """Table 4: what each part adds to the fixed tree, at every budget."""
    columns = (
        "variant", "acceptance", "tokens per iteration", "path length", "nodes an iteration", "tokens/s", "× none",
        "× none, processor time", "tokens per iteration against fixed",
    )  # fmt: skip
    parts = []
    for one in comparisons:
        parts += [f"#### {title(one)}", sentence(one)]
        for nodes in ABLATION_NODES:
            rows = [_ablation_row(one, nodes, name) for name in ABLATION]
            parts += [f"At most {nodes} nodes:", table(columns, rows)]
    return "\n\n".join(parts)


def _ablation_row(one: Comparison, nodes: int, name: str) -> list[str]:
    base, row = (one.find_label(dynamic(nodes, *ABLATION[each]).label) for each in (FIXED_STEP, name))
    assert base is not None
    assert row is not None
    cells = _row(row, one.none)
    return [name, *cells[1:5], *cells[10:], f"{row.tau / base.tau - 1:+.1%}"]


def render_sweeps(comparisons: Sequence[Comparison]) -> str:
    """All sweeps, and the methods at equal mean numbers of verified nodes."""
    parts = [
        "#### Tokens per iteration at equal mean verified nodes",
        "Interpolated between the sizes that were measured; of the fixed trees, the best at each size count.",
        equal_nodes(comparisons),
    ]
    for one in comparisons:
        parts += [f"#### Sweeps: {title(one)}", sentence(one), verification(one)]
    return "\n\n".join(parts)


FAMILIES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (LINEAR, lambda label: label.startswith(f"{LINEAR} ")),
    (f"{FIXED} (D, B, τ)", lambda label: label.startswith(f"{FIXED} ")),
    (PAPER, lambda label: label.startswith(PAPER)),
    (DYNAMIC, lambda label: label.startswith(DYNAMIC) and label.endswith("nodes") and not label.startswith(PAPER)),
    (FIXED_CUT, lambda label: label.startswith(FIXED_CUT)),
)


def equal_nodes(comparisons: Sequence[Comparison]) -> str:
    columns = ["workload, nodes an iteration", *(name for name, _ in FAMILIES)]
    rows = []
    for one in comparisons:
        for nodes in EQUAL_NODES:
            found = [at_nodes([row for row in one.figures if is_in(row.label)], nodes) for _, is_in in FAMILIES]
            shown = ["" if tau is None else f"{tau:.2f}" for tau in found]
            rows.append([f"{title(one)}: {nodes}", *shown])
    return table(columns, rows)


def at_nodes(rows: Sequence[Figures], nodes: float) -> float | None:
    """Tokens per iteration at `nodes` drafted nodes, interpolated between the measured sizes; None beyond them.

    A size is left out where a smaller one gave as many tokens. No nodes give one token.
    """
    points = [(0.0, 1.0)]
    for size, tau in sorted((row.nodes_per_step, row.tau) for row in rows):
        if tau > points[-1][1]:
            points.append((size, tau))
    largest = max((row.nodes_per_step for row in rows), default=0.0)
    if nodes > largest:
        return None
    sizes, taus = zip(*points, strict=True)
    return float(np.interp(nodes, sizes, taus))


def render_memory(found: Sequence[Footprint]) -> str:
    """Table 5: peak resident memory of a process that answered one request, compared with the first row."""
    base = found[0].peak_bytes
    columns = (
        "method", "draft model", "draft weights, MB", "slots", "draft slots", "bytes a slot", "bytes a draft slot",
        "peak resident, MB", "against the first",
    )  # fmt: skip
    rows = [
        [
            one.method,
            "loaded" if one.draft_slots else NONE,
            f"{one.draft_weight_bytes / _MEGABYTE:.1f}",
            str(one.slots),
            str(one.draft_slots),
            str(one.slot_bytes),
            str(one.draft_slot_bytes),
            f"{one.peak_bytes / _MEGABYTE:.1f}",
            f"{one.peak_bytes / base - 1:+.1%}",
        ]
        for one in found
    ]
    return table(columns, rows)
