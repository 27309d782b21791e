"""Runs as tables. Pure; nothing is computed here but sums and rounding."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from decoding.bench.tables.table import UNKNOWN, Table
from decoding.training.public_prompts import PROMPT_SETS
from server.bench.real.figures import AUTO, NONE, Ratio, Row, Run, Setting
from server.bench.real.goals import missed_median, verdict

PICTURE = "real_models.svg"
SETTING = ("workload", "T", "at once")
MISSED = "*"  # marks a row that misses a goal


def run_table(run: Run) -> Table:
    """A row for each setting: how many times as fast as plain decoding each method is, and its τ; and how `auto` is
    beside the best of the others, with a star where it misses a goal."""
    methods = [method for method in dict.fromkeys(row.method for row in run.rows) if method != NONE]
    head = (*SETTING, "none, tokens/s", *methods, "auto × best", "differ from none")
    return Table(head, [_cells(run, setting, methods) for setting in in_order(run)])


def against_table(run: Run) -> Table:
    """A row for each setting and method: the first server's speed over the second's."""
    head = (*SETTING, "method", "tokens/s", "against", "× against", "differ from against")
    rows = [row for setting in in_order(run) for row in run.of(setting).values() if row.against]
    return Table(head, [(*_titles(row.setting), row.method, *_against_cells(row)) for row in rows])


def in_order(run: Run) -> list[Setting]:
    """The run's settings as tables show them."""
    places = list(PROMPT_SETS)
    return sorted(run.settings, key=lambda each: (places.index(each.workload), each.temperature, each.at_once))


def _titles(setting: Setting) -> tuple[str, str, str]:
    return PROMPT_SETS[setting.workload].title, f"{setting.temperature:g}", str(setting.at_once)


def _cells(run: Run, setting: Setting, methods: Sequence[str]) -> tuple[str, ...]:
    rows, told = run.of(setting), verdict(run, setting)
    plain = f"{rows[NONE].speed.tokens_per_second:.1f}" if NONE in rows else UNKNOWN
    best = UNKNOWN if told is None or told.over_best is None else f"{told.over_best:.2f} ({told.best})"
    best += MISSED if told and told.misses else ""
    compared = [row.to_plain for row in rows.values() if row.to_plain and row.to_plain.of]
    differ = f"{sum(one.differ for one in compared)} of {sum(one.of for one in compared)}" if compared else UNKNOWN
    return (*_titles(setting), plain, *(_method_cell(rows.get(method)) for method in methods), best, differ)


def _method_cell(row: Row | None) -> str:
    if row is None:
        return UNKNOWN
    shown = f"{row.speed.tokens_per_second:.1f}" if row.to_plain is None else _times(row.to_plain)
    return f"{shown} ({row.speed.tau:.2f})" if row.speed.tau else shown


def _against_cells(row: Row) -> tuple[str, ...]:
    assert row.against is not None
    assert row.to_against is not None
    rates = (f"{row.speed.tokens_per_second:.1f}", f"{row.against.tokens_per_second:.1f}")
    return (*rates, _times(row.to_against), f"{row.to_against.differ} of {row.to_against.of}")


def _times(ratio: Ratio | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio.times:.2f}"


def summary(runs: Sequence[Run]) -> str:
    """Markdown for the README: a row for each run of one server, which tells how `auto` did for one request at a
    time."""
    alone = [run for run in runs if len(run.versions) == 1]
    rows = [row for run in alone for row in run.rows if row.at_once == 1]
    workloads = [name for name in PROMPT_SETS if any(row.workload == name for row in rows)]
    head = ("model", "weights", "plain, tokens/s", *(PROMPT_SETS[name].title for name in workloads))
    cells = [(run.model, run.weights, _plain_rate(run), *(_auto(run, name) for name in workloads)) for run in alone]
    compared = [row.to_plain for row in rows if row.to_plain]
    temperatures = sorted({row.temperature for row in rows})
    num_replies = sum(ratio.of for ratio in compared)
    num_differing = sum(ratio.differ for ratio in compared)
    found = f" Of {num_replies} drafted replies {num_differing} have another token than the plain one."
    sentences = (
        "Each cell is how many times as fast as plain decoding `auto` writes the tokens after the first: the median "
        f"over prompts, at temperature {' / '.join(f'{one:g}' for one in temperatures)}.{found if num_replies else ''} "
        f"Measured on {'; '.join(sorted({run.machine for run in alone}))}."
    )
    return f"{Table(head, cells).markdown()}\n\n{sentences}"


def details(runs: Sequence[Run]) -> str:
    """Markdown for the page of all methods: the picture, and a section for each run."""
    picture = f"![How many times as fast as plain decoding each method is, for each model and workload]({PICTURE})"
    return "\n\n".join([picture, *map(_section, runs)])


def _section(run: Run) -> str:
    prompts = f"{run.prompts} prompts a workload, " if run.prompts else ""
    replies = f"{prompts}{run.rounds} round(s), at most {run.max_tokens} tokens a reply"
    note = f" {run.note}" if run.note else ""
    made = f"`{run.command}` on {run.machine}; {replies}; gander {' against '.join(run.versions)}.{note}"
    parts = [f"### {run.model}, {run.weights}", made, run_table(run).folded("at once", "differ from none")]
    if any(row.against for row in run.rows):
        parts.append(against_table(run).folded("at once"))
    return "\n\n".join([*parts, *missed_median(run)])


def _plain_rate(run: Run) -> str:
    rates = [row.speed.tokens_per_second for row in run.rows if row.method == NONE and row.at_once == 1]
    return f"{median(rates):.0f}" if rates else UNKNOWN


def _auto(run: Run, workload: str) -> str:
    rows = [row for row in run.rows if (row.workload, row.method, row.at_once) == (workload, AUTO, 1)]
    return " / ".join(_times(row.to_plain) for row in sorted(rows, key=lambda row: row.temperature)) or UNKNOWN
