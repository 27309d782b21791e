"""Compares draft heads and draft models in the form of GTO's Table 1: `gander bench heads`.

Owns the choice of measurements and the console; `book` stores the figures, `tables` renders them.
Invariant: a figure that is on disk is not measured again, and every new figure is written at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from decoding.bench.contestant import Contestant, in_rounds, warm_up
from decoding.bench.heads.book import Finding, Setting, Size, read_book
from decoding.bench.heads.contender import Contender, read_contender
from decoding.bench.heads.tables import Row, Seed, render
from decoding.bench.heads.target import cycled, digest_of_replies, find_target
from decoding.bench.machine import describe_machine
from decoding.bench.options import floats, names, refuse_unknown
from decoding.bench.progress import bars_on
from decoding.bench.tables.figures import pool, same_tokens
from decoding.bench.tables.report import Report, command_line
from decoding.bench.workload import HUMANEVAL, NAMES, PromptChoice, Workload, load_workloads
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.eagle.eagle_tree import BEAM, MOST_DEPTH, NUM_NODES
from decoding.engine.engine import Engine
from decoding.errors import ConfigError
from decoding.training.texts.corpus import SKILLS

PAGE, SECTION = "heads", "table"
MAX_PROMPT_LEN = 512
PLAIN = SpeculationParams(method="none", max_nodes=0)
EAGLE = SpeculationParams(method="eagle", max_nodes=NUM_NODES, max_depth=MOST_DEPTH)
PRICED = SpeculationParams(method="dynamic")
EAGLE_WAY = f"eagle, {NUM_NODES} nodes, depth {MOST_DEPTH}, beam {BEAM}"
PRICED_WAY = "dynamic, own budget"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench heads", description=__doc__)
    add = parser.add_argument
    add("--model", default="gosling", help="the bundled model, or a folder with a model and its tokenizer.json")
    add(
        "--contender",
        action="append",
        required=True,
        metavar="NAME=FOLDER",
        help="a head or draft model; `draft-model` is the bundled one; several of one NAME are seeds of one row",
    )
    add("--data", type=Path, help="a folder with public prompts; without it their workloads are left out")
    add("--out", type=Path, default=Path("figures"), help="the folder for heads.md and heads.json")
    add("--workloads", type=names, default=(*SKILLS, HUMANEVAL), help=f"comma-separated: {','.join(NAMES)}")
    add("--temperatures", type=floats, default=(0.0, 1.0), help="comma-separated")
    add("--prompts", type=int, default=24, help="prompts of each workload for acceptance lengths")
    add("--max-tokens", type=int, default=128, help="most new tokens for one prompt")
    add("--rounds", type=int, default=24, help="prompts that all answer in turn for speeds; over again where too few")
    add("--threads", type=int, help="default: measured for each model")
    add("--no-tau", action="store_true", help="measure no acceptance lengths")
    add("--no-timing", action="store_true", help="measure no speeds")
    chosen = parser.parse_args(argv)
    refuse_unknown(parser, "workload", chosen.workloads, NAMES)
    try:
        chosen.contenders = [read_contender(given, chosen.model) for given in chosen.contender]
    except ConfigError as error:
        parser.error(str(error))
    return chosen


class Heads:
    """One run of the command."""

    def __init__(self, chosen: argparse.Namespace, report: Report, console: Console) -> None:
        self.chosen = chosen
        self.report = report
        self.console = console
        self.book = read_book(chosen.out / f"{PAGE}.json", SECTION)
        self.is_broken = False
        self.target = find_target(chosen.model, chosen.threads)
        self._machine = f"{describe_machine()}, threads {chosen.threads or 'measured'}"
        self._run = datetime.now(UTC).isoformat(timespec="seconds")
        self._workloads = self._load_workloads()

    def run(self) -> int:
        """Measure what is missing; 1 if some contender did not give the tokens of the others."""
        with bars_on(self.console) as bars:
            if not self.chosen.no_tau:
                for contender in self.chosen.contenders:
                    self.acceptance(bars, contender)
            if not self.chosen.no_timing:
                self.speed(bars)
        self.console.print(self._write(), markup=False, highlight=False, soft_wrap=True)
        return int(self.is_broken)

    def acceptance(self, bars: Progress, contender: Contender) -> None:
        """Count the accepted nodes of a contender's `eagle` trees in all settings without a figure."""
        missing = [
            (workload, setting)
            for workload, setting in self._counted()
            if self.book.find(contender.digest, setting) is None
        ]
        if not missing:
            return
        bar = bars.add_task(f"τ of {contender.label}", total=sum(len(each.prompts) for each, _ in missing))
        engine = self._load(contender)
        for workload, setting in missing:
            contestant = Contestant(engine, contender.label, EAGLE)
            (replies,) = in_rounds([contestant], workload.tasks(setting.temperature), lambda: bars.advance(bar))
            figures, tokens = pool(contender.label, replies), digest_of_replies(replies)
            self._add(
                Finding(contender=contender.digest, setting=setting, figures=figures, run=self._run, replies=tokens)
            )

    def speed(self, bars: Progress) -> None:
        """Time all contenders without a speed figure, in the same rounds."""
        engines: dict[str, Engine] = {}
        for workload, setting in self._timed():
            missing = [each for each in self._distinct() if self.book.find(each.digest, setting) is None]
            if not missing:
                continue
            engines = engines or {"": self.target.load(None)}
            engines |= {each.digest: self._load(each) for each in missing if each.digest not in engines}
            contestants = [Contestant(engines[""], "none", PLAIN)]
            contestants += [Contestant(engines[each.digest], each.label, PRICED) for each in missing]
            tasks, name = workload.tasks(setting.temperature), f"{workload.name} at temperature {setting.temperature:g}"
            bar = bars.add_task(name, total=len(contestants) * len(tasks))
            warm_up(contestants, tasks[0])
            plain, *drafted = in_rounds(contestants, tasks, lambda bar=bar: bars.advance(bar))  # type: ignore[misc]
            if differing := [
                each.label for each, own in zip(missing, drafted, strict=True) if not same_tokens(own, plain)
            ]:
                self._complain(f"none's on {name}: {', '.join(differing)}")
                continue
            none = pool("none", plain)
            for each, own in zip(missing, drafted, strict=True):
                figures = pool(each.label, own)
                self._add(Finding(contender=each.digest, setting=setting, figures=figures, run=self._run, none=none))

    def _add(self, finding: Finding) -> None:
        if self.book.has_other_replies(finding):
            self._complain(f"another contender's on {finding.setting.workload}: {finding.figures.label}")
            return
        self.book.findings.append(finding)
        self._write()

    def _complain(self, whose: str) -> None:
        self.is_broken = True
        self.console.print(f"[red]Other tokens than[/] {whose}. These figures are not kept.")

    def _write(self) -> str:
        """Write figures and table to disk; return the table."""
        text = render(self._rows(), [each.name for each in self._workloads], self.chosen.temperatures)
        self.report.write(SECTION, text, self.book)
        return text

    def _rows(self) -> list[Row]:
        """The rows of this run's contenders, with the figures that the book has."""
        seeds: dict[str, list[Seed]] = {}
        for each in self.chosen.contenders:
            counted = {(one.workload, one.temperature): self.book.find(each.digest, one) for _, one in self._counted()}
            timed = {(one.workload, one.temperature): self.book.find(each.digest, one) for _, one in self._timed()}
            seeds.setdefault(each.name, []).append(
                Seed(
                    taus={place: found.figures.tau for place, found in counted.items() if found},
                    speeds={place: found for place, found in timed.items() if found},
                    size=self._size_of(each),
                )
            )
        return [Row(name, found) for name, found in seeds.items()]

    def _distinct(self) -> list[Contender]:
        """The contenders without duplicates under other names."""
        return list({each.digest: each for each in self.chosen.contenders}.values())

    def _load(self, contender: Contender) -> Engine:
        """Load an engine with a contender, and record the contender's size."""
        engine = self.target.load(contender)
        if self._size_of(contender) is None:
            self.book.sizes.append(self.target.size(contender, engine))
        return engine

    def _size_of(self, contender: Contender) -> Size | None:
        return self.book.size_of(contender.digest, self.target.digest, self.target.numbers)

    def _load_workloads(self) -> list[Workload]:
        """The workloads, with as many prompts as acceptance or speed needs."""
        chosen = self.chosen
        choice = PromptChoice(
            count=max(chosen.prompts, chosen.rounds),
            max_tokens=chosen.max_tokens,
            max_prompt_len=MAX_PROMPT_LEN,
            data=chosen.data,
        )
        return load_workloads(chosen.workloads, self.target.folder, choice, self.console.print)

    def _counted(self) -> list[tuple[Workload, Setting]]:
        """The workloads and settings that acceptance is counted on."""
        some = [replace(each, prompts=each.prompts[: self.chosen.prompts]) for each in self._workloads]
        return self._settings(some, EAGLE_WAY)

    def _timed(self) -> list[tuple[Workload, Setting]]:
        """The workloads and settings that speeds are measured on."""
        some = [cycled(each, self.chosen.rounds) for each in self._workloads]
        return self._settings(some, PRICED_WAY, self._machine)

    def _settings(self, workloads: Sequence[Workload], way: str, machine: str = "") -> list[tuple[Workload, Setting]]:
        return [
            (workload, self.target.setting(workload, temperature, way, machine))
            for temperature in self.chosen.temperatures
            for workload in workloads
        ]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = parse(given)
    command = command_line("gander bench heads", given)
    return Heads(chosen, Report(chosen.out, describe_machine(), command, PAGE), Console()).run()


if __name__ == "__main__":
    sys.exit(main())
