"""Prints what was found on this machine, line by line as it is found, or all of it as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape

from decoding.model.device.runner import Progress
from decoding.process.machine import cores
from server.doctor import findings
from server.doctor.findings import Finding

WIDTH = 11  # of the longest name


def main(model: str | None, is_json: bool) -> int:
    """`gander doctor`: the exit status is 1 where something is wrong."""
    console = Console(highlight=False, soft_wrap=True)
    found = []
    with Console(stderr=True).status("Looking") as status:  # shown on a terminal only
        for finding in look(model, lambda sentence, _: status.update(escape(sentence))):
            found.append(finding)
            if not is_json:
                _show(console, finding)
    if is_json:
        console.print_json(json.dumps([asdict(finding) for finding in found]))
    return int(any(finding.is_wrong for finding in found))


def look(model: str | None, on_progress: Progress) -> Iterator[Finding]:
    """All findings, the quickest first. model: the one whose exactness is tried; None as of `findings.exactness`."""
    yield findings.versions()
    yield findings.processor()
    yield findings.cores(cores())
    yield findings.memory()
    yield findings.gpu()
    yield findings.kernels()
    yield findings.models(os.environ)
    yield findings.exactness(model, on_progress)


def _show(console: Console, finding: Finding) -> None:
    colour = "red" if finding.is_wrong else "bold"
    console.print(f"[{colour}]{finding.about:<{WIDTH}}[/{colour}] {escape(finding.text)}.")
    if finding.advice is not None:
        console.print(f"{'':<{WIDTH}} [dim]{escape(finding.advice)}.[/dim]")
