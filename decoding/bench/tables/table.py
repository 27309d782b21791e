"""A table, as Markdown and for the console."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table as RichTable

UNKNOWN = "–"  # in the place of a value


@dataclass(frozen=True, slots=True)
class Table:
    """head: a heading for each column; rows: as many cells each. The first column has text, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        lines = [self.head, ("---", *("--:" for _ in self.head[1:])), *self.rows]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)

    def rich(self) -> RichTable:
        found = RichTable(box=box.SIMPLE)
        for place, name in enumerate(self.head):
            found.add_column(name, justify="right" if place else "left")
        for row in self.rows:
            found.add_row(*row)
        return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    return Table(head, rows).markdown()
