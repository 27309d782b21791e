"""Measures many samples of one problem: `gander bench samples --questions gsm8k_test.jsonl --model model.gguf`.

Each method answers a problem so many times, one sample after the other in one session, as STAND has it.
Invariant: the k-th sample of a problem has the same seed with every method, and a problem is on disk before the next.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from rich.console import Console
from transformers import AutoTokenizer

from decoding.bench.contestant import Contestant, Reply, Task, in_rounds, warm_up
from decoding.bench.machine import describe_machine
from decoding.bench.options import names, positive
from decoding.bench.progress import bars_on
from decoding.bench.samples.questions import Question, encoder, held_out, read_number, read_questions
from decoding.bench.samples.tables import PLAIN, PREFIXES, Samples, differing, render
from decoding.bench.tables.figures import pool
from decoding.bench.tables.report import Report, command_line
from decoding.config import EngineConfig
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine
from decoding.engine.start import load_engine
from decoding.model.checkpoint import resolve

METHODS = ("stand", "spine", "recycle", "auto")
PAGE = "samples"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gander bench samples", description=__doc__)
    add = parser.add_argument
    add("--model", default="gosling", help="the bundled model, a GGUF file, or a folder with a model")
    add("--questions", type=Path, help="a file of {prompt, reference} rows in GSM8K's form, for a model of yours")
    add("--methods", type=names, default=METHODS, help=f"apart by commas; default {','.join(METHODS)}")
    add("--problems", type=positive, default=20)
    add("--samples", type=positive, default=16, help="of each problem")
    add("--nodes", type=positive, help="drafted nodes a step of every method; default: each method's own budget")
    add("--max-tokens", type=positive, default=200, help="most new tokens of a sample")
    add("--temperature", type=float, default=0.6)
    add("--cold", action="store_true", help="every sample in an empty session")
    add("--out", type=Path, default=Path("figures"), help="the folder for samples.md and samples.json")
    return parser.parse_args(argv)


class SamplesComparison:
    """One run of the command."""

    def __init__(self, chosen: argparse.Namespace, report: Report) -> None:
        self.chosen = chosen
        self.report = report
        config = EngineConfig(prefix_cache=False, model=chosen.model, max_nodes=max(64, chosen.nodes or 0))
        self.engine = load_engine(config)
        self.tokenizer = AutoTokenizer.from_pretrained(resolve(config)[1])

    def run(self, console: Console) -> int:
        """Measure; 1 if some method did not give the tokens of `none`."""
        methods = (PLAIN, *(method for method in self.chosen.methods if method != PLAIN))
        contestants = [_contestant(self.engine, method, self.chosen) for method in methods]
        found: dict[str, list[Samples]] = {method: [] for method in methods}
        questions, answers = self.questions(), list[list[int | None]]()
        with bars_on(console) as bars:
            bar = bars.add_task("samples", total=len(questions) * len(methods) * self.chosen.samples)
            warm_up(contestants, self.tasks(0, questions[0])[0])
            for number, question in enumerate(questions):
                replies = in_rounds(contestants, self.tasks(number, question), lambda: bars.advance(bar))
                for contestant, own in zip(contestants, replies, strict=True):
                    contestant.forget()
                    found[contestant.label].append(samples_of(contestant.label, own))
                answers.append([read_number(self.tokenizer.decode(reply.tokens)) for reply in replies[0]])
                page = render(found, answers, [each.result for each in questions[: number + 1]])
                self.report.write(PAGE, page, {"methods": found, "answers": answers})
        console.print(page, markup=False, soft_wrap=True)
        return int(bool(differing(found)))

    def questions(self) -> list[Question]:
        chosen = self.chosen
        room = self.engine.model.max_model_len - chosen.max_tokens - (chosen.nodes or 64)
        if chosen.questions:
            return read_questions(chosen.questions, chosen.problems, encoder(self.tokenizer), room)
        return held_out(chosen.problems, self.tokenizer.encode, room)

    def tasks(self, number: int, question: Question) -> list[Task]:
        chosen = self.chosen
        return [
            Task(
                prompt=question.prompt,
                max_tokens=chosen.max_tokens,
                temperature=chosen.temperature,
                seed=chosen.samples * number + index,
            )
            for index in range(chosen.samples)
        ]


def samples_of(label: str, replies: Sequence[Reply]) -> Samples:
    counts = [count for count in PREFIXES if count < len(replies)] + [len(replies)]
    return Samples(
        figures={count: pool(label, replies[:count]) for count in counts},
        fingerprint=crc32(b"".join(reply.tokens.tobytes() for reply in replies)),
    )


def _contestant(engine: Engine, method: str, chosen: argparse.Namespace) -> Contestant:
    nodes = None if method in (PLAIN, "auto") else chosen.nodes
    return Contestant(engine, method, SpeculationParams(method=method, max_nodes=nodes), chosen.cold)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the process's exit status."""
    given = sys.argv[1:] if argv is None else list(argv)
    chosen = parse(given)
    report = Report(chosen.out, describe_machine(), command_line("gander bench samples", given), PAGE)
    return SamplesComparison(chosen, report).run(Console())


if __name__ == "__main__":
    sys.exit(main())
