"""The benchmark command: `python -m decoding.bench [PART]`. Some parts, such as `heads`, are commands of their own.

Owns options, progress and the console; each measurement has its own file.
Invariant: all figures so far are on disk before the next part starts.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from decoding.bench import workload as workloads
from decoding.bench.architectures import __main__ as architectures
from decoding.bench.auto import __main__ as auto
from decoding.bench.comparison import Comparison, compare, contestants_of
from decoding.bench.draft_trees import __main__ as draft_trees
from decoding.bench.heads import __main__ as heads
from decoding.bench.machine import describe_machine
from decoding.bench.peers import __main__ as peers
from decoding.bench.profile import profile, render_profile
from decoding.bench.replay import __main__ as replay
from decoding.bench.shapes import DTYPES, GPT2_SIZED, SMALL, measure_shape, render_shapes
from decoding.bench.stand import patterns
from decoding.bench.tables.expectations import Expectation, check_comparisons, check_shapes
from decoding.bench.tables.report import Report, command_line
from decoding.bench.tables.table import render
from decoding.bench.variant import BUDGETS, drafting_methods, variants
from decoding.bench.workload import PromptChoice, Workload, load_workloads
from decoding.config import EngineConfig
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve

PARTS = ("table", "shapes")
COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {  # parts with their own options
    "architectures": architectures.main,
    "auto": auto.main,
    "patterns": patterns.main,
    "draft-trees": draft_trees.main,
    "heads": heads.main,
    "peers": peers.main,
    "replay": replay.main,
}
MAX_PROMPT_LEN = 512
PROFILED = ("none", "lookup", "spine", "auto")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m decoding.bench", description="Measure Gander on this machine.")
    add = parser.add_argument
    add(
        "part",
        nargs="?",
        default="all",
        choices=("all", *PARTS, "profile"),
        help=f"what to measure; with `--help` {', '.join(COMMANDS)} have more",
    )
    add("--model", default="gosling", help="the bundled model, or a folder with a model and its tokenizer.json")
    add("--data", type=Path, help="a folder with humaneval.jsonl; without it that workload is left out")
    add("--out", type=Path, default=Path("figures"), help="the folder for benchmarks.md and benchmarks.json")
    add("--workloads", type=_names, default=workloads.NAMES, help="comma-separated: code,reasoning,stories,humaneval")
    add("--methods", type=_names, help="comma-separated registered methods; default: all that can be had")
    add("--budgets", type=_numbers, default=BUDGETS, help="comma-separated drafted nodes a step")
    add("--temperatures", type=_floats, default=(0.0, 0.7), help="comma-separated")
    add("--prompts", type=int, default=8, help="prompts of each workload, which is also the number of rounds")
    add("--max-tokens", type=int, default=200, help="most new tokens for one prompt")
    add("--cold", action="store_true", help="a fresh session for every prompt")
    add("--quick", action="store_true", help="a minute's run to see that everything works; its figures mean little")
    chosen = parser.parse_args(argv)
    if chosen.quick:
        chosen.prompts, chosen.max_tokens, chosen.budgets = 2, 32, chosen.budgets[:1]
    return chosen


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _names(text))


def _floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in _names(text))


class Bench:
    """One run of the command: options, console, report, and the model once it is needed."""

    def __init__(self, chosen: argparse.Namespace, console: Console, command: str) -> None:
        self.chosen = chosen
        self.console = console
        self.report = Report(chosen.out, describe_machine(), command)
        self.is_broken = False
        self._engine: Engine | None = None

    def run(self) -> int:
        """Measure the chosen parts; 1 if some method did not give the tokens of `none`."""
        measure: dict[str, Callable[[Progress], list[Expectation]]] = {
            "table": self.table,
            "shapes": self.shapes,
            "profile": self.profile,
        }
        parts = PARTS if self.chosen.part == "all" else (self.chosen.part,)
        expectations: list[Expectation] = []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console) as bars:
            for part in parts:
                expectations += measure[part](bars)
        for expectation in expectations:
            self.console.print(
                "[green]met   [/]" if expectation.is_met else "[red]missed[/]", expectation.sentence, soft_wrap=True
            )
        return int(self.is_broken)

    def table(self, bars: Progress) -> list[Expectation]:
        chosen, engine = self.chosen, self.engine()
        stock = AutoModelForCausalLM.from_pretrained(self._folder(), dtype=engine.model.dtype).eval()
        rows = variants(chosen.methods or drafting_methods(engine.methods), chosen.budgets)
        found: list[Comparison] = []
        for workload in self._workloads():
            for temperature in chosen.temperatures:
                contestants = contestants_of(engine, stock, rows, chosen.cold)
                name = f"{workload.name} at temperature {temperature:g}"
                bar = bars.add_task(name, total=len(contestants) * len(workload.prompts))
                found.append(compare(workload, temperature, contestants, lambda bar=bar: bars.advance(bar)))  # type: ignore[misc]
                self.is_broken |= bool(found[-1].differing)
                self.report.write("table", render(found), {"cost_curve": engine.costs.curve, "comparisons": found})
        return check_comparisons(found)

    def shapes(self, bars: Progress) -> list[Expectation]:
        shape, rounds = (SMALL, 1) if self.chosen.quick else (GPT2_SIZED, 3)
        bar = bars.add_task("plain decoding against generate", total=2 * rounds * len(DTYPES))
        results = [measure_shape(shape, dtype, rounds=rounds, on_answer=lambda: bars.advance(bar)) for dtype in DTYPES]
        self.report.write("shapes", render_shapes(results), results)
        return check_shapes(results)

    def profile(self, bars: Progress) -> list[Expectation]:
        engine, prompts = self.engine(), self._workloads()[:1]
        rows = [row for row in variants(PROFILED[1:3], self.chosen.budgets) if row.label in PROFILED]
        bar = bars.add_task("profile", total=len(rows) * len(self.chosen.temperatures))
        results = []
        for temperature in self.chosen.temperatures:
            for row in rows:
                results += [profile(engine, workload, row, temperature) for workload in prompts]
                bars.advance(bar)
        self.report.write("profile", render_profile(results), results)
        return []

    def engine(self) -> Engine:
        """The engine under measurement, loaded once."""
        if self._engine is None:
            self._engine = load_engine(self._config())
        return self._engine

    def _config(self) -> EngineConfig:
        return EngineConfig(prefix_cache=False, model=self.chosen.model, max_nodes=max(64, *self.chosen.budgets))

    def _folder(self) -> str:
        return resolve(self._config())[1]

    def _workloads(self) -> list[Workload]:
        chosen = self.chosen
        tokenizer = Tokenizer.from_file(str(Path(self._folder()) / "tokenizer.json"))
        choice = PromptChoice(
            count=chosen.prompts,
            max_tokens=chosen.max_tokens,
            max_prompt_len=min(MAX_PROMPT_LEN, self.engine().model.max_model_len - chosen.max_tokens),
            data=chosen.data,
        )
        return load_workloads(chosen.workloads, tokenizer, choice, self.console.print)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    transformers.utils.logging.disable_progress_bar()  # it would overwrite ours
    if given and given[0] in COMMANDS:
        return COMMANDS[given[0]](given[1:])
    return Bench(parse(given), Console(), command_line("python -m decoding.bench", given)).run()


if __name__ == "__main__":
    sys.exit(main())
