"""Plain steps of published sizes with random weights: `gander bench architectures lfm2-350m --weights float32,int8`.

Owns options and the table. Invariant: a row is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from decoding.bench.architectures.drafted import CHANCES
from decoding.bench.architectures.measure import ROWS, WEIGHTS, Measured, Plan, measure
from decoding.bench.architectures.sizes import SIZES, config_of
from decoding.bench.machine import describe_machine
from decoding.bench.options import names, positive, refuse_unknown
from decoding.bench.tables.report import Report, command_line
from decoding.bench.tables.table import table

COMMAND = "gander bench architectures"
PAGE = "architectures"
SHOWN_ROWS = (8, 16)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    add = parser.add_argument
    add("names", nargs="+", choices=sorted(SIZES), help="whose sizes")
    add("--weights", type=names, default=("float32",), help=f"apart by commas: {', '.join(WEIGHTS)}")
    add("--layers", type=positive, help="how many layers; default: all that fit a small machine")
    add("--threads", type=positive, default=1)
    add("--rounds", type=positive, default=3)
    add("--drafted", action="store_true", help="draft with predictions that are right with some chance, too")
    add("--processor", action="store_true", help="count processor time, for busy machines")
    add("--out", type=Path, default=Path(), help="the folder of the page and its figures")
    add("--page", default=PAGE, help="the page's name; one that is there has a section of ours")
    chosen = parser.parse_args(argv)
    refuse_unknown(parser, "weights", chosen.weights, WEIGHTS)
    return chosen


def render(rows: Sequence[Measured]) -> str:
    """A Markdown table."""
    columns = ["model", "layers", "weights", "parameters (active)", "step, ms", "`generate` ÷ step", "reading ÷ step"]
    columns += [f"t({num_rows})" for num_rows in SHOWN_ROWS]
    columns += [f"the walk's share at 1, {', '.join(map(str, SHOWN_ROWS))}", "prompt, tokens/s", "rate ÷ dense"]
    columns.append(f"`auto` ÷ plain, a prediction's tokens right {', '.join(f'{chance:.0%}' for chance in CHANCES)}")
    return table(columns, [_cells(row) for row in rows])


def _cells(row: Measured) -> list[str]:
    places = [ROWS.index(num_rows) for num_rows in SHOWN_ROWS]
    walks = ", ".join(f"{row.walk_shares[place]:.0%}" for place in (0, *places))
    return [
        row.name,
        f"{row.num_layers}",
        row.weights,
        f"{row.num_parameters / 1e6:.0f}M ({row.num_active / 1e6:.0f}M)",
        f"{1000 * row.step_seconds:.1f}",
        f"{row.generate_seconds / row.step_seconds:.2f}",
        f"{row.read_seconds / row.step_seconds:.2f}",
        *(f"{row.row_ratios[place]:.2f}" for place in places),
        walks if any(row.walk_shares) else "",
        f"{row.prompt_rate:.0f}",
        "" if row.dense_rate is None else f"{row.prompt_rate / row.dense_rate:.2f}",
        ", ".join(f"{ratio:.2f}" for ratio in row.drafted_ratios),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every name with all weights; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = parse(given)
    report = Report(chosen.out, describe_machine(), command_line(COMMAND, given), chosen.page)
    clock = time.process_time if chosen.processor else time.perf_counter
    plan = Plan(chosen.threads, chosen.rounds, clock, chosen.drafted)
    console, rows = Console(), []
    for name in chosen.names:
        for weights in chosen.weights:
            console.print(f"{name}, {weights} ...")
            rows.append(measure(name, config_of(SIZES[name], chosen.layers), weights, plan))
            report.write(" ".join((PAGE, *chosen.names)), render(rows), rows)
            console.print(render(rows[-1:]), soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
