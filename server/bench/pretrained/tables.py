"""Runs as tables. Pure; nothing is computed here but sums and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from server.bench.pretrained.figures import AUTO, NONE, Ratio, Row, Run
from server.bench.pretrained.prompts import WORKLOADS
from server.bench.report import UNKNOWN, Table


def run_table(rows: Sequence[Row]) -> Table:
    """A row for each workload, temperature and method; columns of a second server where there is one."""
    head: tuple[str, ...] = ("workload", "T", "method", "τ", "tokens/s", "× none", "differ from none")
    has_other = any(row.against for row in rows)
    if has_other:
        head += ("τ against", "tokens/s against", "× against", "tokens/s × against", "differ from against")
    return Table(head, [_cells(row) + (_against_cells(row) if has_other else ()) for row in rows])


def _cells(row: Row) -> tuple[str, ...]:
    speed, title = row.speed, WORKLOADS[row.workload].title
    tau = f"{speed.tau:.2f}" if speed.tau else UNKNOWN
    shown = (title, f"{row.temperature:g}", row.method, tau, f"{speed.tokens_per_second:.1f}")
    return (*shown, _times(row.to_plain), _differ(row.to_plain))


def _against_cells(row: Row) -> tuple[str, ...]:
    assert row.against is not None
    rate = row.speed.tokens_per_second / row.against.tokens_per_second if row.against.tokens_per_second else 0.0
    shown = (f"{row.against.tau:.2f}", f"{row.against.tokens_per_second:.1f}", _times(row.to_against), f"{rate:.2f}")
    return (*shown, _differ(row.to_against))


def _times(ratio: Ratio | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio.times:.2f}"


def _differ(ratio: Ratio | None) -> str:
    return f"{ratio.differ} of {ratio.of}" if ratio is not None and ratio.of else UNKNOWN


def summary(runs: Sequence[Run]) -> str:
    """Markdown for the README: a row for each run of one server, which tells how `auto` did."""
    alone = [run for run in runs if len(run.versions) == 1]
    workloads = [name for name in WORKLOADS if any(row.workload == name for run in alone for row in run.rows)]
    head = ("model", "weights", "plain, tokens/s", *(WORKLOADS[name].title for name in workloads))
    rows = [(run.model, run.weights, _plain_rate(run), *(_auto(run, name) for name in workloads)) for run in alone]
    compared = [row.to_plain for run in alone for row in run.rows if row.to_plain]
    temperatures = sorted({row.temperature for run in alone for row in run.rows})
    num_replies = sum(ratio.of for ratio in compared)
    num_differing = sum(ratio.differ for ratio in compared)
    found = f" Of {num_replies} drafted replies {num_differing} have another token than the plain one."
    sentences = (
        "Each cell is how many times as fast as plain decoding `auto` writes the tokens after the first: the median "
        f"over prompts, at temperature {' / '.join(f'{one:g}' for one in temperatures)}.{found if num_replies else ''} "
        f"Measured on {'; '.join(sorted({run.machine for run in alone}))}."
    )
    return f"{Table(head, rows).markdown()}\n\n{sentences}"


def details(runs: Sequence[Run]) -> str:
    """Markdown for the page of all methods: a section for each run."""
    return "\n\n".join(_section(run) for run in runs)


def _section(run: Run) -> str:
    prompts = f"{run.prompts} prompts a workload, " if run.prompts else ""
    replies = f"{prompts}{run.rounds} round(s), at most {run.max_tokens} tokens a reply"
    note = f" {run.note}" if run.note else ""
    made = f"`{run.command}` on {run.machine}; {replies}; gander {' against '.join(run.versions)}.{note}"
    return f"### {run.model}, {run.weights}\n\n{made}\n\n{run_table(run.rows).markdown()}"


def _plain_rate(run: Run) -> str:
    rates = [row.speed.tokens_per_second for row in run.rows if row.method == NONE]
    return f"{median(rates):.0f}" if rates else UNKNOWN


def _auto(run: Run, workload: str) -> str:
    rows = [row for row in run.rows if (row.workload, row.method) == (workload, AUTO)]
    return " / ".join(_times(row.to_plain) for row in sorted(rows, key=lambda row: row.temperature)) or UNKNOWN
