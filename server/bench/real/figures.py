"""From replies to the rows of a run, and the JSON file that keeps runs. Pure but for the file.

Invariant: a ratio is taken group by group, between replies to the same prompts of the same minute, before the median
is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from decoding.bench.tables.report import write_figures
from server.bench.errors import KeptRunError

NONE, AUTO = "none", "auto"


class Answer(msgspec.Struct, frozen=True):
    """The replies to one prompt's turns. num_later: the tokens after each reply's first; steps: target forwards that
    gave tokens; decode_seconds: from each reply's first token to its last."""

    token_ids: list[int]
    num_later: int
    steps: int
    decode_seconds: float

    @classmethod
    def of(cls, replies: Sequence[Any]) -> Answer:
        """From the bodies of chat completions that were asked for their report and their token ids."""
        choices = [reply["choices"][0] for reply in replies]
        reports = [choice["speculation"] for choice in choices]
        return cls(
            [token for choice in choices for token in choice["token_ids"]],
            sum(max(0, len(choice["token_ids"]) - 1) for choice in choices),
            sum(report["steps"] for report in reports),
            sum(report["decode_seconds"] for report in reports),
        )


Group = Sequence[Answer]  # to prompts that were asked at once


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of a table is of, apart from methods. at_once: how many requests run at a time."""

    workload: str
    temperature: float
    at_once: int = 1


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One server's replies, pooled. tau: tokens per target forward."""

    tau: float
    tokens_per_second: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How much faster these replies came than others to the same prompts, median over groups; differ: how many of
    them have other tokens, of how many. by_group: None for groups of replies that ended with their first token."""

    times: float
    differ: int
    of: int
    by_group: list[float | None] = []


class Row(Setting, frozen=True, kw_only=True):
    """One method in one setting. to_plain: over plain decoding by the same server, None for plain decoding itself;
    against, to_against: the second server, and the first one's speed over its."""

    method: str
    speed: Speed
    to_plain: Ratio | None = None
    against: Speed | None = None
    to_against: Ratio | None = None

    @property
    def setting(self) -> Setting:
        return Setting(workload=self.workload, temperature=self.temperature, at_once=self.at_once)


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All rows of one model. weights: the dtype, and how they are stored; versions: of the servers, in order."""

    model: str
    weights: str
    machine: str
    versions: list[str]
    command: str
    note: str
    prompts: int
    rounds: int
    max_tokens: int
    seed: int = 1
    rows: list[Row]

    @property
    def num_differing(self) -> int:
        """Replies with other tokens than they are compared with."""
        return sum(ratio.differ for row in self.rows for ratio in (row.to_plain, row.to_against) if ratio)

    @property
    def settings(self) -> list[Setting]:
        return list(dict.fromkeys(row.setting for row in self.rows))

    def of(self, setting: Setting) -> dict[str, Row]:
        """The rows of one setting by their method."""
        return {row.method: row for row in self.rows if row.setting == setting}

    def take(self, setting: Setting, rows: Sequence[Row]) -> None:
        """Put these rows in the place of the setting's earlier ones."""
        self.rows[:] = [row for row in self.rows if row.setting != setting] + list(rows)


def rows_of(setting: Setting, answers: Mapping[str, Sequence[Sequence[Group]]]) -> list[Row]:
    """answers: by method, for each server in order, one for each group of prompts of each round."""
    rows = []
    for method, (mine, *others) in answers.items():
        is_compared = NONE in answers and method != NONE
        rows.append(
            Row(
                workload=setting.workload,
                temperature=setting.temperature,
                at_once=setting.at_once,
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


def resume(path: Path, run: Run) -> Run:
    """The run with the rows that the file has of it. Raises KeptRunError where the file's were measured otherwise."""
    kept = next((other for other in read_runs(path) if _subject(other) == _subject(run)), None)
    if kept is None:
        return run
    for name in ("machine", "versions", "prompts", "rounds", "max_tokens", "seed"):
        before, now = getattr(kept, name), getattr(run, name)
        if before != now:
            raise KeptRunError(
                f"{path} has rows of {run.model}, {run.weights}, whose {name} is {before!r} and not {now!r}: name "
                "another --out, or replace them with --anew"
            )
    return msgspec.structs.replace(run, rows=kept.rows)


def keep(path: Path, run: Run) -> None:
    """Write the run to the file, in place of the one of the same model, weights and number of servers."""
    runs = read_runs(path)
    places = [place for place, other in enumerate(runs) if _subject(other) == _subject(run)]
    place = places[0] if places else len(runs)
    runs[place : place + 1] = [run]
    write_figures(path, runs, list[Run])


def _subject(run: Run) -> tuple[str, str, int]:
    return run.model, run.weights, len(run.versions)


def _rate(group: Group) -> float | None:
    """Tokens after the first of each reply over the seconds of the longest reply; None where all ended with their
    first token."""
    seconds = max(answer.decode_seconds for answer in group)
    return sum(answer.num_later for answer in group) / seconds if seconds else None


def _pool(groups: Sequence[Group]) -> Speed:
    answers = [answer for group in groups for answer in group]
    seconds = sum(max(answer.decode_seconds for answer in group) for group in groups)
    tau = sum(len(answer.token_ids) for answer in answers) / max(1, sum(answer.steps for answer in answers))
    rate = sum(answer.num_later for answer in answers) / seconds if seconds else 0.0
    return Speed(tau=round(tau, 3), tokens_per_second=round(rate, 2))


def _compare(groups: Sequence[Group], others: Sequence[Group]) -> Ratio:
    rates = [(_rate(one), _rate(other)) for one, other in zip(groups, others, strict=True)]
    by_group = [round(mine / theirs, 3) if mine and theirs else None for mine, theirs in rates]
    told = [ratio for ratio in by_group if ratio is not None]
    pairs = [pair for one, other in zip(groups, others, strict=True) for pair in zip(one, other, strict=True)]
    differ = sum(answer.token_ids != expected.token_ids for answer, expected in pairs)
    return Ratio(times=round(median(told), 3) if told else 0.0, differ=differ, of=len(pairs), by_group=by_group)
