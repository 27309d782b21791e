"""From replies to the rows of a run, and the JSON file that keeps runs. Pure but for the file.

Invariant: a ratio is taken prompt by prompt, between replies of the same minute, before the median is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from decoding.bench.tables.report import write_figures

NONE, AUTO = "none", "auto"


class Answer(msgspec.Struct, frozen=True):
    """One reply. steps: target forwards that gave tokens; decode_seconds: from the first token to the last."""

    token_ids: list[int]
    steps: int
    decode_seconds: float

    @classmethod
    def of(cls, reply: Any) -> Answer:
        """From the body of a chat completion that was asked for its report and its token ids."""
        choice = reply["choices"][0]
        report = choice["speculation"]
        return cls(choice["token_ids"], report["steps"], report["decode_seconds"])

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None of a reply that ended with it."""
        return (len(self.token_ids) - 1) / self.decode_seconds if self.decode_seconds else None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One server's replies, pooled. tau: tokens per target forward."""

    tau: float
    tokens_per_second: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How much faster these replies came than others to the same prompts, median over prompts; differ: how many of
    them have other tokens, of how many."""

    times: float
    differ: int
    of: int
    by_prompt: list[float] = []


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one workload. to_plain: over plain decoding by the same server, None for plain decoding itself;
    against, to_against: the second server, and the first one's speed over its."""

    workload: str
    temperature: float
    method: str
    speed: Speed
    to_plain: Ratio | None = None
    against: Speed | None = None
    to_against: Ratio | None = None


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one command. weights: the dtype, and how they are stored; versions: of the servers, in order."""

    model: str
    weights: str
    machine: str
    versions: list[str]
    command: str
    note: str
    prompts: int
    rounds: int
    max_tokens: int
    rows: list[Row]

    @property
    def num_differing(self) -> int:
        """Replies with other tokens than they are compared with."""
        return sum(ratio.differ for row in self.rows for ratio in (row.to_plain, row.to_against) if ratio)

    def find(self, workload: str, temperature: float, method: str) -> Row | None:
        sought = (workload, temperature, method)
        return next((row for row in self.rows if (row.workload, row.temperature, row.method) == sought), None)


def rows_of(workload: str, temperature: float, answers: Mapping[str, Sequence[Sequence[Answer]]]) -> list[Row]:
    """answers: by method, for each server in order, one for each prompt of each round."""
    rows = []
    for method, (mine, *others) in answers.items():
        is_compared = NONE in answers and method != NONE
        rows.append(
            Row(
                workload=workload,
                temperature=temperature,
                method=method,
                speed=_pool(mine),
                to_plain=_compare(mine, answers[NONE][0]) if is_compared else None,
                against=_pool(others[0]) if others else None,
                to_against=_compare(mine, others[0]) if others else None,
            )
        )
    return rows


def read_runs(path: Path) -> list[Run]:
    return msgspec.json.decode(path.read_bytes(), type=list[Run]) if path.is_file() else []


def keep(path: Path, run: Run) -> None:
    """Write the run to the file, in place of the one of the same model, weights and number of servers."""
    runs = read_runs(path)
    places = [place for place, other in enumerate(runs) if _subject(other) == _subject(run)]
    place = places[0] if places else len(runs)
    runs[place : place + 1] = [run]
    write_figures(path, runs, list[Run])


def _subject(run: Run) -> tuple[str, str, int]:
    return run.model, run.weights, len(run.versions)


def _pool(answers: Sequence[Answer]) -> Speed:
    tokens = sum(len(answer.token_ids) for answer in answers)
    seconds = sum(answer.decode_seconds for answer in answers)
    tau = tokens / max(1, sum(answer.steps for answer in answers))
    rate = (tokens - len(answers)) / seconds if seconds else 0.0
    return Speed(tau=round(tau, 3), tokens_per_second=round(rate, 2))


def _compare(answers: Sequence[Answer], others: Sequence[Answer]) -> Ratio:
    rates = [(one.tokens_per_second, other.tokens_per_second) for one, other in zip(answers, others, strict=True)]
    by_prompt = [round(mine / theirs, 3) for mine, theirs in rates if mine and theirs]
    differ = sum(one.token_ids != other.token_ids for one, other in zip(answers, others, strict=True))
    times = round(median(by_prompt), 3) if by_prompt else 0.0
    return Ratio(times=times, differ=differ, of=len(answers), by_prompt=by_prompt)
