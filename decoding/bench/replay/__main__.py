"""Measures acceptance lengths at equal draft budgets: `gander bench replay --methods auto,spine --data FOLDER`.

Owns options, engines and the console; `rows` measures a row, `tables` renders it. The real engine answers: a requested
draft budget needs no clock. Invariant: a row is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from rich.console import Console

from decoding.bench.machine import describe_machine
from decoding.bench.options import floats, names, numbers, refuse_unknown
from decoding.bench.progress import bars_on
from decoding.bench.replay.rows import NONE, Kept, Plan, Row, Way, load_kept, measure_row, way_of
from decoding.bench.replay.tables import differing, render
from decoding.bench.tables.report import write_figures, write_section
from decoding.bench.workload import NAMES, PromptChoice, Workload, load_workloads
from decoding.config import EngineConfig
from decoding.drafting.registry import AUTO
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve

BUDGETS = (2, 4, 8, 16, 32)
METHODS = ("spine", "stand", "recycle", "isotropic", "lookup", "suffix", "suffix-branches", "dynamic")
MAX_PROMPT_LEN = 600


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench replay", description=__doc__)
    add = parser.add_argument
    add(
        "--model",
        default="gosling",
        help="the bundled model, a GGUF file, or a folder with a model and its tokenizer.json",
    )
    add("--draft-model", default="auto", help="a folder or GGUF file; the bundled model has its own")
    add("--draft-head", help="a folder with an EAGLE-3 head, which drafts in place of the draft model")
    add("--data", type=Path, help="a folder of public prompt sets, as `gander bench real` takes it")
    add("--methods", type=names, default=METHODS, help="registered methods, METHOD-PART without a part of it")
    add("--workloads", type=names, default=NAMES, help=f"apart by commas, of {', '.join(NAMES)}")
    add("--temperatures", type=floats, default=(0.0, 0.7), help="apart by commas")
    add("--budgets", type=numbers, default=BUDGETS, help="draft budgets in nodes, apart by commas")
    add("--prompts", type=int, default=4, help="of each workload")
    add("--max-tokens", type=int, default=96, help="most new tokens of a reply")
    add("--again", action="store_true", help="measure rows of these methods anew")
    add("--judged", default=AUTO, help="the method that is compared with the best of the others")
    add("--out", type=Path, default=Path("replay.json"), help="rows are kept here, and tables beside it in Markdown")
    chosen = parser.parse_args(argv)
    chosen.methods = [NONE, *(name for name in chosen.methods if name != NONE)]
    refuse_unknown(parser, "workload", chosen.workloads, NAMES)
    return chosen


class Replay:
    """One run of the command."""

    def __init__(self, chosen: argparse.Namespace, console: Console) -> None:
        self.chosen = chosen
        self.console = console
        self.config = EngineConfig(
            prefix_cache=False,
            model=chosen.model,
            draft_model=chosen.draft_model,
            draft_head=chosen.draft_head,
            max_nodes=max(64, *chosen.budgets),
            threads=1,
        )
        plan = Plan(
            model=Path(chosen.model).name,
            draft_model=Path(chosen.draft_model).name,
            draft_head=Path(chosen.draft_head).name if chosen.draft_head else None,
            prompts=chosen.prompts,
            max_tokens=chosen.max_tokens,
        )
        self.kept = load_kept(chosen.out, plan, describe_machine())

    @cached_property
    def engine(self) -> Engine:
        return load_engine(self.config)

    def workloads(self) -> list[Workload]:
        chosen = self.chosen
        choice = PromptChoice(
            count=chosen.prompts, max_tokens=chosen.max_tokens, max_prompt_len=MAX_PROMPT_LEN, data=chosen.data
        )
        return load_workloads(chosen.workloads, Path(resolve(self.config)[1]), choice, self.console.print)

    def missing(self) -> list[tuple[Way, Workload, float, int]]:
        """The rows that are still to be measured."""
        chosen = self.chosen
        known = {row.key for row in self.kept.rows if not (chosen.again and row.method in chosen.methods)}
        asked = self.workloads()
        return [
            (way, workload, temperature, nodes)
            for way in map(way_of, chosen.methods)
            for workload in asked
            for temperature in chosen.temperatures
            for nodes in way.budgets(chosen.budgets)
            if (way.label, workload.name, temperature, nodes) not in known
        ]

    def run(self) -> int:
        """Measure what is missing; 1 if some method did not give the tokens of `none`."""
        missing = self.missing()
        with bars_on(self.console) as bars:
            bar = bars.add_task("rows", total=len(missing))
            for way, workload, temperature, nodes in missing:
                bars.update(bar, description=f"{way.label}, {workload.name}")
                self._keep(measure_row(self.engine, workload, temperature, way, nodes))
                bars.advance(bar)
        return int(bool(differing(self.kept.rows)))

    def _keep(self, row: Row) -> None:
        self.kept.rows = [other for other in self.kept.rows if other.key != row.key] + [row]
        write_figures(self.chosen.out, self.kept, Kept)
        made = render(self.kept.rows, self.chosen.judged)
        write_section(self.chosen.out.with_suffix(".md"), "# Replay at equal nodes\n", "replay", made)


def main(argv: Sequence[str] | None = None) -> int:
    return Replay(parse(argv), Console()).run()


if __name__ == "__main__":
    sys.exit(main())
