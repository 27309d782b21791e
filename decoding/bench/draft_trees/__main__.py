"""Reproduces DynaTree's tables of draft-model trees: `python -m decoding.bench.draft_trees`.

Owns the choice of measurements, targets and workloads, and the console; `ways` has the methods that are compared,
`tables` the Markdown. Invariant: every table is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from tokenizers import Tokenizer

from decoding.bench.comparison import Comparison, compare
from decoding.bench.draft_trees.memory import measure_memory
from decoding.bench.draft_trees.plot import plot_sweeps
from decoding.bench.draft_trees.tables import render_ablation, render_main, render_memory, render_sweeps
from decoding.bench.draft_trees.ways import Way, ablation_ways, contestants, main_ways, sweep_ways
from decoding.bench.machine import describe_machine
from decoding.bench.tables.report import Report, command_line
from decoding.bench.targets import DEFAULT_MILLIONS, load_widened
from decoding.bench.workload import WIKITEXT, PromptChoice, Workload, chat_of, load_workloads
from decoding.config import EngineConfig
from decoding.drafting.draft_model.draft_model import load_draft_model
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine, start_engine
from decoding.model.checkpoint import resolve
from decoding.model.device.runner import silent

PARTS = ("main", "ablation", "sweeps", "memory", "widened")
PAGE, PLOT = "dynamic_trees", "dynamic_trees.svg"
# Workload, temperature, whether replies go on past end tokens.
MAIN = ((WIKITEXT, 0.0, True), (WIKITEXT, 0.0, False), ("stories", 0.0, False), ("code", 0.0, False),
        (WIKITEXT, 0.7, True), ("code", 0.7, False))  # fmt: skip
SWEPT = ((WIKITEXT, 0.0, True), ("code", 0.0, False))
WIDENED = ((WIKITEXT, 0.0, True), ("stories", 0.0, False), ("code", 0.0, False))
MAX_PROMPT_LEN = 600
CONTEXT = 256  # tokens of context at which the costs of draft and target are compared
WANTED_RATIO = 1 / 8


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.draft_trees", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", default=[], choices=(*PARTS, []), help="what to measure")
    add(
        "--model",
        default="gosling",
        help="the bundled model, a GGUF file, or a folder with a model and its tokenizer.json",
    )
    add("--draft-model", default="auto", help="a folder or GGUF file; the bundled model has its own")
    add("--data", type=Path, help="a folder with wikitext2_valid_prompts_800c.jsonl; without it that is left out")
    add("--workloads", help="apart by commas, in place of those that were chosen for the bundled model")
    add("--out", type=Path, default=Path("figures"), help="the folder for the page and its figures")
    add("--prompts", type=int, default=3, help="prompts of each workload, which is also the number of rounds")
    add("--max-tokens", type=int, default=300, help="most new tokens for one prompt; half of it in sweeps")
    add("--widened", type=int, default=DEFAULT_MILLIONS, help="millions of parameters of the widened target")
    add("--threads", type=int, help="default: measured for each model")
    add("--quick", action="store_true", help="a short run to see that everything works; its figures mean little")
    chosen = parser.parse_args(argv)
    if chosen.quick:
        chosen.prompts, chosen.max_tokens = 1, 24
    return chosen


class DraftTrees:
    """One run of the command."""

    def __init__(self, chosen: argparse.Namespace, report: Report, console: Console) -> None:
        self.chosen = chosen
        self.report = report
        self.console = console
        self.config = EngineConfig(
            prefix_cache=False,
            model=chosen.model,
            draft_model=chosen.draft_model,
            threads=chosen.threads,
        )
        self.folder = Path(resolve(self.config)[1])
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        self.chat = chat_of(self.folder)
        self.is_broken = False
        self._engine: Engine | None = None

    def run(self) -> int:
        """Measure the chosen parts; 1 if some method did not give the tokens of `none`."""
        measure: dict[str, Callable[[Progress], None]] = {
            "main": self.main,
            "ablation": self.ablation,
            "sweeps": self.sweeps,
            "memory": self.memory,
            "widened": self.widened,
        }
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=self.console) as bars:
            for part in PARTS:
                if part in (self.chosen.parts or PARTS):
                    measure[part](bars)
        return int(self.is_broken)

    def main(self, bars: Progress) -> None:
        engine, found = self.engine(), list[Comparison]()
        for workload, temperature in self._settings(MAIN):
            found.append(self._compare(bars, engine, workload, temperature, main_ways(temperature > 0)))
            target = f"{self.chosen.model} ({describe_ratio(engine)})"
            self.report.write("main", render_main(found, target), found)

    def ablation(self, bars: Progress) -> None:
        engine = self.engine()
        found = [
            self._compare(bars, engine, workload, temperature, ablation_ways())
            for workload, temperature in self._settings(SWEPT)
        ]
        self.report.write("ablation", render_ablation(found), found)

    def sweeps(self, bars: Progress) -> None:
        engine = self.engine()
        found = [
            self._compare(bars, engine, workload, temperature, sweep_ways())
            for workload, temperature in self._settings(SWEPT, self.chosen.max_tokens // 2)
        ]
        self.report.write("sweeps", render_sweeps(found), found)
        plot_sweeps(found, self.chosen.out / PLOT)

    def memory(self, bars: Progress) -> None:
        bar = bars.add_task("memory", total=1)
        found = measure_memory()
        self.report.write("memory", render_memory(found), found)
        bars.advance(bar)

    def widened(self, bars: Progress) -> None:
        engine, found = self.widened_engine(), list[Comparison]()
        target = f"{self.chosen.model} {describe_widened(engine)} ({describe_ratio(engine)})"
        for workload, temperature in self._settings(WIDENED):
            found.append(self._compare(bars, engine, workload, temperature, main_ways(temperature > 0)))
            self.report.write("widened", render_main(found, target), found)

    def widened_engine(self) -> Engine:
        """An engine whose target has a realistic cost and gives the same tokens as the narrow one."""
        self._engine = None  # the next engine uses another number of threads
        model = load_widened(self.config, 1_000_000 * self.chosen.widened)
        engine = start_engine(model, self.config, draft_model=load_draft_model(self.config, silent))
        self.console.print(f"Widened target: {describe_ratio(engine)}.")
        if draft_share(engine) > WANTED_RATIO:
            self.console.print("[yellow]That is more than an eighth: take more --widened.[/]")
        return engine

    def engine(self) -> Engine:
        """The engine of the narrow target, loaded once."""
        if self._engine is None:
            self._engine = load_engine(self.config)
        return self._engine

    def _compare(
        self, bars: Progress, engine: Engine, workload: Workload, temperature: float, ways: Sequence[Way]
    ) -> Comparison:
        name = f"{workload.name} at temperature {temperature:g}"
        bar = bars.add_task(name, total=len(ways) * len(workload.prompts))
        found = compare(workload, temperature, contestants(engine, ways), lambda: bars.advance(bar))
        if found.differing:
            self.is_broken = True
            self.console.print(f"[red]Other tokens than none's[/] on {name}: {', '.join(found.differing)}")
        return found

    def _settings(
        self, settings: Sequence[tuple[str, float, bool]], max_tokens: int | None = None
    ) -> list[tuple[Workload, float]]:
        """Workloads and temperatures, without those whose prompt file is missing. --workloads replace the part's own at
        each of its temperatures."""
        chosen, found = self.chosen, []
        choice = PromptChoice(
            count=chosen.prompts,
            max_tokens=max_tokens or chosen.max_tokens,
            max_prompt_len=MAX_PROMPT_LEN,
            data=chosen.data,
            chat=self.chat,
        )
        if chosen.workloads:
            temperatures = sorted({temperature for _, temperature, _ in settings})
            settings = [(name, each, False) for name in chosen.workloads.split(",") for each in temperatures]
        for name, temperature, ignore_eos in settings:
            shown = f"{name}, end token ignored" if ignore_eos else name
            for workload in load_workloads([name], self.tokenizer, choice, self.console.print):
                found.append((replace(workload, name=shown, ignore_eos=ignore_eos), temperature))
        return found


def draft_share(engine: Engine) -> float:
    """The calibrated seconds of one token in the draft model over those of one token in the target."""
    assert engine.costs.draft_curve is not None
    draft = engine.costs.draft_curve.step_seconds([1], [CONTEXT])
    return draft / engine.costs.curve.step_seconds([1], [CONTEXT])


def describe_ratio(engine: Engine) -> str:
    """The ratio of the draft model's forward to the target's, in words."""
    seconds = engine.costs.curve.step_seconds([1], [CONTEXT])
    return f"a step of {1e3 * seconds:.1f} ms, a draft forward 1/{1 / draft_share(engine):.1f} of it"


def describe_widened(engine: Engine) -> str:
    return f"widened to {engine.model.num_parameters / 1e6:.0f}M parameters"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = parse(given)
    transformers.utils.logging.disable_progress_bar()  # it would overwrite ours
    command = command_line("python -m decoding.bench.draft_trees", given)
    return DraftTrees(chosen, Report(chosen.out, describe_machine(), command, PAGE), Console()).run()


if __name__ == "__main__":
    sys.exit(main())
