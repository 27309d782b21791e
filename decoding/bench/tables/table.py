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

    def folded(self, *names: str) -> str:
        """As Markdown. Columns of these names that say the same in every row are told once, in a line after it."""
        cells = {name: {row[place] for row in self.rows} for place, name in enumerate(self.head) if name in names}
        same = {name: found.pop() for name, found in cells.items() if len(found) == 1}
        kept = [place for place, name in enumerate(self.head) if name not in same]
        rows = [tuple(row[place] for place in kept) for row in (self.head, *self.rows)]
        shown = Table(rows[0], rows[1:]).markdown()
        told = ", ".join(f"{name} {cell}" for name, cell in same.items())
        return f"{shown}\n\nIn every row: {told}." if told else shown

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
