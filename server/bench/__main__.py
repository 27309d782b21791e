"""The command: `gander bench serve`, or `python -m server.bench`.

Owns the console, the processes of servers that it starts, and the file with the tables.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from rich.console import Console
from rich.markup import escape

from decoding.bench.machine import describe_machine
from decoding.bench.tables.table import Table
from decoding.core.files.output import check_output, write_output
from server.bench.bench import Bench
from server.bench.connection import Address
from server.bench.errors import BenchError
from server.bench.measured_server import MeasuredServer
from server.bench.options import BenchOptions, parse
from server.bench.started_servers import running_gander

WIDTH = 200  # characters, where the output goes to a file


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status, which is 1 where a request failed."""
    given = sys.argv[1:] if argv is None else list(argv)
    options, console = parse(given), Console()
    if options.out is not None:
        check_output(options.out, _is_ours)
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        with ExitStack() as servers:
            tables, num_failed = asyncio.run(_measure(options, console, _urls(options, console, servers)))
    except (BenchError, OSError) as error:
        console.print(f"[red]{type(error).__name__}:[/red] {escape(str(error))}", soft_wrap=True)
        return 1
    for table in tables:
        console.print(table.rich())
    if options.out is not None:
        write_output(options.out, markdown(given, tables).encode(), _is_ours)
    return int(num_failed > 0)


def markdown(given: Sequence[str], tables: Sequence[Table]) -> str:
    """The tables below the command that made them (without its API key) and a description of the machine."""
    shown = ["KEY" if before == "--api-key" else part for before, part in zip(["", *given], given, strict=False)]
    head = f"`{shlex.join(['gander', 'bench', 'serve', *shown])}` on {describe_machine()}."
    return "\n\n".join((head, *(table.markdown() for table in tables))) + "\n"


def _is_ours(content: bytes) -> bool:
    return content.startswith(b"`gander bench serve ")


def _urls(options: BenchOptions, console: Console, servers: ExitStack) -> list[tuple[str, str]]:
    """Label and URL of each server. Servers are started where no URLs were given."""
    if options.urls:
        return [(url, url) for url in options.urls]
    found = []
    for flags in options.server_flags:
        label = shlex.join(flags) or "default flags"
        console.print(f"Starting a server with {label}.", highlight=False, markup=False)
        found.append((label, servers.enter_context(running_gander(flags))))
    return found


async def _measure(options: BenchOptions, console: Console, urls: Sequence[tuple[str, str]]) -> tuple[list[Table], int]:
    addresses = [(label, Address.of(url, options.api_key)) for label, url in urls]
    bench = Bench(options, console, [await MeasuredServer.find(label, address) for label, address in addresses])
    return await bench.run(), bench.num_failed


if __name__ == "__main__":
    sys.exit(main())
