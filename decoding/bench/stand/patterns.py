"""Measures sampled and many-trajectory decoding in the form of STAND's tables: `gander bench patterns`.

Owns the choice of comparisons and the console; `trajectories` measures, `tables` renders.
Invariant: every table is on disk before the next is measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from decoding.bench.machine import describe_machine
from decoding.bench.stand import tables as pattern_tables
from decoding.bench.stand.questions import (
    held_out_questions,
    questions_of,
    read_last_number,
    read_number,
    word_problems,
)
from decoding.bench.stand.tables import PLAIN, Replies
from decoding.bench.stand.trajectories import Answering, Contender, Question, Trajectory
from decoding.bench.stand.variants import drawing_contenders, method_contenders, store_contenders, tree_contenders
from decoding.bench.tables.report import Report, command_line
from decoding.config import EngineConfig
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve
from decoding.training.texts.corpus import Skill

PARTS = ("sequence", "batch", "drawing", "trees", "store")
BATCHES = (4, 8)
PAGE = "stand"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench patterns", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"what to measure, of {', '.join(PARTS)}; all of them by default")
    add(
        "--model",
        default="gosling",
        help="the bundled model, a GGUF file, or a folder with a model and its tokenizer.json",
    )
    add("--questions", type=Path, help="a file of {prompt, reference} rows in GSM8K's form, for a larger model")
    add("--methods", help="in the first two tables, apart by commas; all of them by default")
    add("--out", type=Path, default=Path("figures"), help="the folder for the page and its figures")
    add("--problems", type=int, default=20)
    add("--trajectories", type=int, default=16, help="replies to each problem in the first table")
    add("--nodes", type=int, default=80, help="drafted nodes a step, the same for every method")
    add("--max-tokens", type=int, default=200)
    add("--temperature", type=float, default=0.6)
    chosen = parser.parse_args(argv)
    unknown = sorted(set(chosen.parts).difference(PARTS))
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    chosen.parts = chosen.parts or list(PARTS)
    return chosen


class Patterns:
    """One run of the command."""

    def __init__(self, chosen: argparse.Namespace, report: Report) -> None:
        self.chosen = chosen
        self.report = report
        config = EngineConfig(
            prefix_cache=False,
            model=chosen.model,
            max_nodes=max(64, chosen.nodes),
            max_batch_rows=1024,
        )
        self.engine = load_engine(config)
        self.folder = Path(resolve(config)[1])
        self.tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        read = read_last_number if chosen.questions else read_number
        self.answering = Answering(self.engine, self.tokenizer, chosen.max_tokens, chosen.temperature, read)

    def questions(self, skill: Skill) -> list[Question]:
        """Held-out problems of the bundled model, or the problems of --questions."""
        chosen = self.chosen
        room = self.engine.model.max_model_len - chosen.max_tokens - chosen.nodes
        if chosen.questions:
            encode = word_problems(AutoTokenizer.from_pretrained(self.folder))
            return questions_of(chosen.questions, chosen.problems, encode, room)
        return held_out_questions(skill, chosen.problems, lambda text: self.tokenizer.encode(text).ids, room)

    def measure(
        self, bars: Progress, name: str, contenders: Sequence[Contender], count: int, skill: Skill = "reasoning"
    ) -> Replies:
        """Measure `count` replies to every problem from every contender, in a new random order for each problem."""
        questions = self.questions(skill)
        answer = self.answering.side_by_side if name.startswith("batch") else self.answering.in_sequence
        bar = bars.add_task(name, total=len(questions) * len(contenders))
        found: dict[str, list[Trajectory]] = {contender.label: [] for contender in contenders}
        for number, question in enumerate(questions):
            order = list(contenders)
            Random(number).shuffle(order)
            for contender in order:
                found[contender.label] += answer(contender, number, question, count)
                bars.advance(bar)
        return Replies(questions, found, count)

    def contenders(self) -> list[Contender]:
        """The methods to compare, and always plain decoding."""
        chosen = self.chosen.methods.split(",") if self.chosen.methods else None
        contenders = method_contenders(self.chosen.nodes)
        return [one for one in contenders if chosen is None or one.speculation.method in (*chosen, PLAIN)]

    def sequence(self, bars: Progress) -> None:
        replies = self.measure(bars, "sequence", self.contenders(), self.chosen.trajectories)
        self.write("sequence", pattern_tables.render_sequence(replies), replies)

    def batch(self, bars: Progress) -> None:
        contenders = [contender for contender in self.contenders() if not contender.is_cold]
        found = {count: self.measure(bars, f"batch of {count}", contenders, count) for count in BATCHES}
        text = pattern_tables.render_batches(found)
        self.write("batch", text, *found.values())

    def drawing(self, bars: Progress) -> None:
        replies = self.measure(bars, "drawing", drawing_contenders(self.chosen.nodes), 4)
        self.write("drawing", pattern_tables.render_plain(replies), replies)

    def trees(self, bars: Progress) -> None:
        contenders = tree_contenders(self.chosen.nodes)
        skills: tuple[Skill, ...] = ("reasoning",) if self.chosen.questions else ("reasoning", "code")
        found = {skill: self.measure(bars, f"trees, {skill}", contenders, 4, skill) for skill in skills}
        parts = [f"{skill}\n\n{pattern_tables.render_plain(replies)}" for skill, replies in found.items()]
        self.write("trees", "\n\n".join(parts), *found.values())

    def store(self, bars: Progress) -> None:
        replies = self.measure(bars, "store", store_contenders(self.chosen.nodes, self.chosen.temperature), 8)
        self.write("store", pattern_tables.render_plain(replies), replies)

    def write(self, part: str, text: str, *replies: Replies) -> None:
        self.report.write(part, text, [each.found for each in replies])


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = parse(given)
    report = Report(chosen.out, describe_machine(), command_line("gander bench patterns", given), PAGE)
    patterns = Patterns(chosen, report)
    measure: dict[str, Callable[[Progress], None]] = {
        "sequence": patterns.sequence,
        "batch": patterns.batch,
        "drawing": patterns.drawing,
        "trees": patterns.trees,
        "store": patterns.store,
    }
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console()) as bars:
        for part in chosen.parts:
            measure[part](bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
