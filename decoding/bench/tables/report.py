"""Writes a run's report: sections of a Markdown page, and every raw figure as JSON.

Owns the page's generated sections between marker comments; the text around them is never changed.
Invariant: a section is written as a whole, with the machine and the command that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

PAGE = "benchmarks"
SECTIONS = ("table", "shapes", "profile")


def command_line(command: str, given: Sequence[str]) -> str:
    """The command as it was typed, but with folders by their last name only, since readers use other machines."""
    return " ".join((command, *map(_shown, given)))


def _shown(part: str) -> str:
    if Path(part).is_absolute():
        return Path(part).name
    name, separator, path = part.rpartition("=")
    return f"{name}{separator}{Path(path).name}" if Path(path).is_absolute() else part


class Report:
    """Writes to `folder`, which is created if needed. head: the machine line. command: as it was typed. page: the name
    of the Markdown and the JSON file."""

    def __init__(self, folder: Path, head: str, command: str, page: str = PAGE) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._page, self._raw = folder / f"{page}.md", folder / f"{page}.json"
        self._head, self._command = head, command

    def write(self, section: str, markdown: str, raw: Any) -> None:
        """Replace one section of the page, and its raw figures in the JSON file."""
        text = self._page.read_text(encoding="utf-8") if self._page.is_file() else "# Benchmarks\n"
        made = f"`{self._command}` on {self._head}.\n\n{markdown}"
        self._page.write_text(replace_section(text, section, made), encoding="utf-8")
        known = msgspec.json.decode(self._raw.read_bytes()) if self._raw.is_file() else {}
        known[section] = {"machine": self._head, "command": self._command, "figures": raw}
        self._raw.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")


def replace_section(page: str, section: str, markdown: str) -> str:
    """The page with the text between the section's markers replaced; without markers the section is appended."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        before, after = f"{page.rstrip()}\n\n", "\n"
    return f"{before}{begin}\n{markdown}\n{end}{after}"
