"""The command: `gander bench real`, or `python -m server.bench.real`.

Owns the console, the servers that it starts, and the file. Invariant: a row is in the file before the next is measured,
and is not measured again by a later call.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import pairwise, product
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape

from decoding.bench.machine import describe_machine
from decoding.bench.progress import bars_on
from decoding.bench.tables.report import command_line
from decoding.core.files.output import check_output, is_json_of
from decoding.training.public_prompts import Prompt, read_prompts
from server.bench.connection import Address
from server.bench.errors import BenchError
from server.bench.measured_server import MeasuredServer
from server.bench.real.figures import Run, Setting, keep, resume
from server.bench.real.goals import missed, name_of
from server.bench.real.options import METHODS, RealOptions, parse
from server.bench.real.rounds import Rounds
from server.bench.real.tables import against_table, run_table
from server.bench.started_servers import running_gander

WIDTH = 200  # characters, where the output goes to a file
OWN_FLAGS = ("--no-prefix-cache",)  # of servers that are started: prompts come again with every method
DRAFTERS = ("--draft-model", "--draft-head")


class Task(NamedTuple):
    """One row of the table to come."""

    setting: Setting
    prompts: list[Prompt]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status, which is 1 where replies differ or none came."""
    given = sys.argv[1:] if argv is None else list(argv)
    options, console = parse(given), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    if options.out is not None:
        check_output(options.out, is_json_of(list[Run]))
    try:
        with ExitStack() as servers:
            run = asyncio.run(_measure(options, console, given, _urls(options, console, servers)))
    except (BenchError, OSError) as error:
        console.print(f"[red]{type(error).__name__}:[/red] {escape(str(error))}", soft_wrap=True)
        return 1
    console.print(run_table(run).rich())
    if len(run.versions) > 1:
        console.print(against_table(run).rich())
    for sentence in missed(run):
        console.print(f"[red]missed[/red] {sentence}", soft_wrap=True, highlight=False)
    return int(run.num_differing > 0)


def _urls(options: RealOptions, console: Console, servers: ExitStack) -> list[str]:
    """Of all servers, which are started where no URLs were given."""
    if options.urls:
        return list(options.urls)
    found = []
    for flags in options.server_flags:
        console.print(f"Starting a server with {' '.join(flags)}.", highlight=False, soft_wrap=True, markup=False)
        found.append(servers.enter_context(running_gander((*flags, *OWN_FLAGS))))
    return found


async def _measure(options: RealOptions, console: Console, given: Sequence[str], urls: Sequence[str]) -> Run:
    servers = [await MeasuredServer.find(url, Address.of(url, options.api_key)) for url in urls]
    engines: list[dict[str, Any]] = [(await server.status())["engine"] for server in servers]
    has = [method for method in METHODS if all(method in engine["methods"] for engine in engines)]
    methods = options.methods or tuple(has)
    run = _describe(options, engines[0], [await server.version() for server in servers], given)
    if options.out is not None and not options.is_anew:
        run = resume(options.out, run)
    tasks = [task for task in _tasks(options) if not run.of(task.setting).keys() >= set(methods)]
    with bars_on(console) as bars:
        num_replies = sum(len(task.prompts) for task in tasks) * options.rounds * len(methods) * len(servers)
        bar = bars.add_task("replies", total=num_replies)
        rounds = Rounds(options, servers, methods, lambda: bars.advance(bar))
        await rounds.warm_up()
        bars.reset(bar)
        for number, (setting, prompts) in enumerate(tasks, 1):
            bars.update(bar, description=f"row {number} of {len(tasks)}: {name_of(setting)}")
            run.take(setting, await rounds.measure(setting, prompts))
            if options.out is not None:
                keep(options.out, run)
    return run


def _tasks(options: RealOptions) -> Iterator[Task]:
    """Rows with one request at a time come first: they tell most."""
    for at_once in sorted(options.at_once):
        read = read_prompts(options.data, options.workloads, options.num_prompts(at_once))
        for (workload, prompts), temperature in product(read.items(), options.temperatures):
            yield Task(Setting(workload=workload, temperature=temperature, at_once=at_once), prompts)


def _describe(options: RealOptions, engine: dict[str, Any], versions: list[str], given: Sequence[str]) -> Run:
    """A run without rows yet."""
    dtype, stored = engine["dtype"], engine["weights"]
    shown = ["KEY" if before == "--api-key" else part for before, part in zip(["", *given], given, strict=False)]
    return Run(
        model=options.name or _name(engine["model"], options.server_flags[0]),
        weights=dtype if stored in ("", dtype) else f"{stored} weights, {dtype}",
        machine=describe_machine(),
        versions=versions,
        command=command_line("gander bench real", shown),
        note=options.note,
        prompts=options.prompts,
        rounds=options.rounds,
        max_tokens=options.max_tokens,
        seed=options.seed,
        rows=[],
    )


def _name(model: str, flags: Sequence[str]) -> str:
    """The last part of the model's name, and of its drafter's where one is given."""
    drafters = [value for flag, value in pairwise(flags) if flag in DRAFTERS]
    return ", drafted by ".join(name.rstrip("/").rpartition("/")[2] for name in (model, *drafters))


if __name__ == "__main__":
    sys.exit(main())
