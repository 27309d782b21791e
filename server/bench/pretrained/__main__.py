"""The command: `gander bench pretrained`, or `python -m server.bench.pretrained`.

Owns the console and the file. Invariant: what was measured so far is in the file before the next workload begins.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decoding.bench.machine import describe_machine
from decoding.bench.tables.report import command_line
from server.bench.connection import Address
from server.bench.errors import BenchError
from server.bench.measured_server import MeasuredServer
from server.bench.pretrained.figures import Run, keep
from server.bench.pretrained.options import PretrainedOptions, parse
from server.bench.pretrained.prompts import read_prompts
from server.bench.pretrained.rounds import Rounds
from server.bench.pretrained.tables import run_table

WIDTH = 200  # characters, where the output goes to a file


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status, which is 1 where replies differ or none came."""
    given = sys.argv[1:] if argv is None else list(argv)
    options, console = parse(given), Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        run = asyncio.run(_measure(options, console, given))
    except (BenchError, OSError) as error:
        console.print(f"[red]{type(error).__name__}:[/red] {error}", soft_wrap=True)
        return 1
    console.print(run_table(run.rows).rich())
    return int(run.num_differing > 0)


async def _measure(options: PretrainedOptions, console: Console, given: Sequence[str]) -> Run:
    workloads = read_prompts(options.data, options.workloads, options.prompts)
    urls = [options.url, *([options.against] if options.against else [])]
    servers = [await MeasuredServer.find(url, Address.of(url, options.api_key)) for url in urls]
    run = await _describe(options, servers, given)
    total = sum(map(len, workloads.values())) * len(options.temperatures) * options.rounds
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bars:
        bar = bars.add_task("replies", total=total * len(options.methods) * len(servers))
        rounds = Rounds(options, servers, lambda: bars.advance(bar))
        await rounds.warm_up()
        for workload, prompts in workloads.items():
            for temperature in options.temperatures:
                run.rows.extend(await rounds.measure(workload, temperature, prompts))
                if options.out is not None:
                    keep(options.out, run)
    return run


async def _describe(options: PretrainedOptions, servers: Sequence[MeasuredServer], given: Sequence[str]) -> Run:
    """A run without rows yet. Raises ServerError where a server is not ready."""
    engine: dict[str, Any] = (await servers[0].status())["engine"]
    dtype, stored = engine["dtype"], engine["weights"]
    shown = ["KEY" if before == "--api-key" else part for before, part in zip(["", *given], given, strict=False)]
    return Run(
        model=options.name or servers[0].model.rpartition("/")[2],
        weights=dtype if stored in ("", dtype) else f"{stored} weights, {dtype}",
        machine=describe_machine(),
        versions=[await server.version() for server in servers],
        command=command_line("gander bench pretrained", shown),
        note=options.note,
        prompts=options.prompts,
        rounds=options.rounds,
        max_tokens=options.max_tokens,
        rows=[],
    )


if __name__ == "__main__":
    sys.exit(main())
