"""Measures a row: a method with its options and one draft budget answers a whole workload in one session.

Owns the run and the rows on disk. Invariant: a row is measured once; a file of another plan is discarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import msgspec

from decoding.bench.contestant import Contestant
from decoding.bench.tables.figures import Counts, pool
from decoding.bench.tables.report import is_page
from decoding.bench.workload import Workload
from decoding.core.files.output import check_output, is_json_of
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine

NONE = "none"


class Row(Counts, frozen=True, kw_only=True):
    """Sums over a workload's replies. fingerprint: of their tokens."""

    method: str
    workload: str
    temperature: float
    nodes: int
    fingerprint: int

    @property
    def key(self) -> tuple[str, str, float, int]:
        return self.method, self.workload, self.temperature, self.nodes


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that all rows of one table share."""

    model: str
    draft_model: str
    draft_head: str | None
    prompts: int
    max_tokens: int


class Kept(msgspec.Struct, kw_only=True):
    """The content of the file on disk."""

    plan: Plan
    machine: str
    rows: list[Row] = []


@dataclass(frozen=True, slots=True)
class Way:
    """A method with its options, under a name. budgets: those of the requested budgets that it is measured at."""

    label: str
    speculation: SpeculationParams

    def at(self, nodes: int) -> SpeculationParams:
        return replace(self.speculation, max_nodes=nodes)

    def budgets(self, asked: Iterable[int]) -> list[int]:
        return [0] if self.label == NONE else list(asked)


def way_of(label: str) -> Way:
    """A registered method, with the parts that it is to leave out after minus signs: suffix-branches is a chain as
    SuffixDecoding published it, spine-best_first the tree of its paper."""
    method, *without = label.split("-")
    return Way(label, SpeculationParams(method=method, without=frozenset(without)))


def measure_row(engine: Engine, workload: Workload, temperature: float, way: Way, nodes: int) -> Row:
    """Answer all prompts, one after the other, in an empty session of a server that has learned nothing."""
    with engine.sessions.apart():
        contestant = Contestant(engine, way.label, way.at(nodes))
        replies = [contestant.answer(task) for task in workload.tasks(temperature)]
    found = pool(way.label, replies)
    return Row(
        method=way.label,
        workload=workload.name,
        temperature=temperature,
        nodes=nodes,
        tokens=found.tokens,
        forwards=found.forwards,
        drafted=found.drafted,
        accepted=found.accepted,
        fingerprint=crc32(b"".join(reply.tokens.tobytes() for reply in replies)),
    )


def load_kept(path: Path, plan: Plan, machine: str) -> Kept:
    """The rows of an earlier run of the same plan, or no rows."""
    check_output(path, is_json_of(Kept))
    check_output(path.with_suffix(".md"), is_page)
    if path.is_file():
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        if kept.plan == plan:
            return kept
    return Kept(plan=plan, machine=machine)
