"""Compares one tree from all sources with each method alone, in tokens a second: `gander bench auto --data FOLDER`.

Owns options, targets and the console; `runs` measures a run. A round runs every method once, in a new random order.
Invariant: each setting is measured once, and is on disk before the next one is measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from decoding.bench import scripts
from decoding.bench.auto.plot import plot_load
from decoding.bench.auto.runs import Setting, measure_run
from decoding.bench.auto.tables import Measured, render
from decoding.bench.comparison import AGAIN
from decoding.bench.machine import describe_machine
from decoding.bench.scripts import Script, load_scripts
from decoding.bench.tables.report import command_line, is_page, is_picture, write_figures, write_section
from decoding.bench.targets import load_random, load_widened
from decoding.bench.variant import NONE
from decoding.bench.workload import PromptChoice
from decoding.config import EngineConfig
from decoding.core.files.output import check_output, is_json_of
from decoding.drafting.draft_model.draft_model import load_draft_model
from decoding.drafting.registry import AUTO
from decoding.engine.engine import Engine
from decoding.engine.start import start_engine
from decoding.model.checkpoint import resolve
from decoding.model.device.runner import silent

MOST_SESSION_BYTES = 2**33  # enough to keep all sessions of a run
SINGLES = ("spine", "stand", "dynamic", "recycle", "lookup", "suffix")
MAX_PROMPT_LEN = 600
CALIBRATION_ROUNDS = 96  # measurements of step costs before the comparison starts


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench auto", description=__doc__)
    add = parser.add_argument
    add("--model", default="gosling", help="the bundled model, or a folder with a model and its tokenizer.json")
    add("--draft-model", default="auto", help="a folder; the bundled model has its own")
    add("--widened", type=int, default=0, help="measure on the model widened to so many million parameters")
    add("--data", type=Path, help="a folder with humaneval.jsonl and wikitext2_valid_prompts_800c.jsonl")
    add("--methods", default=",".join(SINGLES), help="those that `auto` is held against, apart by commas")
    add("--workloads", default=",".join(scripts.NAMES), help="apart by commas")
    add("--temperatures", default="0,0.7", help="apart by commas")
    add("--at-once", default="1,4,16", help="numbers of users, apart by commas")
    add("--rounds", type=int, default=3)
    add("--prompts", type=int, default=3, help="of each workload that has prompts")
    add("--max-tokens", type=int, default=64, help="most new tokens of a reply")
    add("--threads", type=int, default=1)
    add("--clock", choices=("wall", "processor"), default="wall", help="processor: for a machine with other work")
    add("--again", action="store_true", help="measure anew what is on disk")
    add("--out", type=Path, default=Path("auto.json"), help="runs are kept here, tables and picture beside it")
    return parser.parse_args(argv)


class OneTreeComparison:
    """One call of the command."""

    def __init__(self, chosen: argparse.Namespace, command: str, console: Console) -> None:
        self.chosen = chosen
        self.command = command
        self.console = console
        self.methods = [NONE, AGAIN, *(_names(chosen.methods)), AUTO]
        self.config = EngineConfig(
            prefix_cache=False,
            model=chosen.model,
            draft_model=chosen.draft_model,
            threads=chosen.threads,
            session_bytes_per_key=MOST_SESSION_BYTES,
            session_bytes_in_all=MOST_SESSION_BYTES,
        )
        self.clock = time.process_time if chosen.clock == "processor" else time.perf_counter
        name = Path(chosen.model).name
        self.target = f"{name} widened to {chosen.widened}M parameters" if chosen.widened else name
        check_output(chosen.out, is_json_of(list[Measured]))
        check_output(chosen.out.with_suffix(".md"), is_page)
        check_output(chosen.out.with_suffix(".svg"), is_picture)
        self.measured: list[Measured] = []
        if chosen.out.is_file():
            self.measured = msgspec.json.decode(chosen.out.read_bytes(), type=list[Measured])
        self._engines: dict[bool, Engine] = {}

    def run(self) -> int:
        """Measure what is missing; 1 if some method did not give the tokens of `none`."""
        known = set(map(_setting, self.measured))
        missing = [
            (script, temperature, at_once)
            for script in self._scripts()
            for temperature in map(float, _names(self.chosen.temperatures))
            if temperature > 0 or not script.is_sampled
            for at_once in map(int, _names(self.chosen.at_once))
            if self.chosen.again or Setting(self.target, script.name, temperature, at_once) not in known
        ]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console) as bars:
            bar = bars.add_task("settings", total=len(missing))
            for script, temperature, at_once in missing:
                bars.update(bar, description=f"{script.name}, temperature {temperature:g}, {at_once} at once")
                self._keep(self._measure(script, temperature, at_once))
                bars.advance(bar)
        return int(any(each.differing for each in self.measured))

    def _measure(self, script: Script, temperature: float, at_once: int) -> Measured:
        engine = self._engine(script.is_random)
        rounds = []
        for number in range(self.chosen.rounds):
            order = list(self.methods)
            Random(number).shuffle(order)
            runs = {each: measure_run(engine, script, temperature, at_once, each, self.clock) for each in order}
            rounds.append([runs[method] for method in self.methods])
        return Measured(
            target=self.target, workload=script.name, temperature=temperature, at_once=at_once, rounds=rounds
        )

    def _scripts(self) -> list[Script]:
        chosen = self.chosen
        tokenizer = Tokenizer.from_file(str(Path(resolve(self.config)[1]) / "tokenizer.json"))
        choice = PromptChoice(
            count=chosen.prompts, max_tokens=chosen.max_tokens, max_prompt_len=MAX_PROMPT_LEN, data=chosen.data
        )
        found = load_scripts(_names(chosen.workloads), tokenizer, choice, self.console.print)
        return [script for script in found if not (script.is_random and chosen.widened)]  # the narrow run has it

    def _engine(self, is_random: bool) -> Engine:
        """The engine of the target or of random weights, loaded once."""
        if is_random not in self._engines:
            self._engines[is_random] = engine = self._new_engine(is_random)
            for _ in range(CALIBRATION_ROUNDS):
                engine.on_idle()
        return self._engines[is_random]

    def _new_engine(self, is_random: bool) -> Engine:
        config, draft_model = self.config, load_draft_model(self.config, silent)
        model = load_random(config) if is_random else load_widened(config, 1_000_000 * self.chosen.widened)
        return start_engine(model, config, silent, draft_model)

    def _keep(self, measured: Measured) -> None:
        self.measured = [each for each in self.measured if _setting(each) != _setting(measured)] + [measured]
        out = self.chosen.out
        write_figures(out, self.measured, list[Measured])
        made = f"`{self.command}` on {describe_machine()}.\n\n{render(self.measured)}"
        write_section(out.with_suffix(".md"), "# One tree\n", "auto", made)
        plot_load(self.measured, out.with_suffix(".svg"))


def _setting(measured: Measured) -> Setting:
    return Setting(measured.target, measured.workload, measured.temperature, measured.at_once)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    return OneTreeComparison(parse(given), command_line("gander bench auto", given), Console()).run()


if __name__ == "__main__":
    sys.exit(main())
