"""Writes a run's report: sections of a Markdown page, and every raw figure as JSON.

Owns the page's generated sections between marker comments; the text around them is never changed.
Invariant: a section is written as a whole, with the machine and the command that made it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from decoding.core.files.output import check_output, is_json_of, write_output


def command_line(command: str, given: Sequence[str]) -> str:
    """The command as it was typed, but with folders by their last name only, since readers use other machines."""
    return " ".join((command, *map(_shown, given)))


def _shown(part: str) -> str:
    if Path(part).is_absolute():
        return Path(part).name
    name, separator, path = part.rpartition("=")
    return f"{name}{separator}{Path(path).name}" if Path(path).is_absolute() else part


class _Section(msgspec.Struct, forbid_unknown_fields=True):
    """The figures of a section, as they are kept."""

    machine: str
    command: str
    figures: Any


class Report:
    """Writes to `folder`, which is created if needed. head: the machine line. command: as it was typed. page: the name
    of the Markdown and the JSON file. Raises ConfigError for files of these names that no command of ours wrote."""

    def __init__(self, folder: Path, head: str, command: str, page: str) -> None:
        self._page, self._raw = folder / f"{page}.md", folder / f"{page}.json"
        check_output(self._page, is_page)
        check_output(self._raw, is_json_of(dict[str, _Section]))
        self._head, self._command = head, command

    def write(self, section: str, markdown: str, raw: Any) -> None:
        """Replace one section of the page, and its raw figures in the JSON file."""
        write_section(self._page, "# Benchmarks\n", section, f"`{self._command}` on {self._head}.\n\n{markdown}")
        known = msgspec.json.decode(self._raw.read_bytes()) if self._raw.is_file() else {}
        known[section] = {"machine": self._head, "command": self._command, "figures": raw}
        write_figures(self._raw, known, dict[str, _Section])


def is_page(content: bytes) -> bool:
    """Whether the page with this content has a section that a command wrote."""
    return re.search(rb"<!-- [\w. -]+: begin -->", content) is not None


def is_picture(content: bytes) -> bool:
    """Whether it is a picture as commands draw them."""
    return b"<dc:title>Matplotlib" in content[:4096]


def write_section(page: Path, title: str, section: str, markdown: str) -> None:
    """Replace one section of a page, which begins as `title` where it is new. Raises ConfigError for a page that has no
    section of ours."""
    check_output(page, is_page)
    text = page.read_text(encoding="utf-8") if page.is_file() else title
    write_output(page, replace_section(text, section, markdown).encode(), is_page)


def write_figures(path: Path, figures: Any, kind: Any) -> None:
    """Write figures as JSON, in the place of some of the same kind. Raises ConfigError for a file that holds others."""
    write_output(path, msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n", is_json_of(kind))


def write_picture(path: Path, figure: Any) -> None:
    """Write a figure of matplotlib as SVG, in the place of such a picture."""
    drawn = BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    write_output(path, drawn.getvalue(), is_picture)


def replace_section(page: str, section: str, markdown: str) -> str:
    """The page with the text between the section's markers replaced; without markers the section is appended."""
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        before, after = f"{page.rstrip()}\n\n", "\n"
    return f"{before}{begin}\n{markdown}\n{end}{after}"
