"""Measures a row: a method with its options and one draft budget answers a whole script in one session.

Owns the run and the rows on disk. Invariant: a row is measured once; a file of another plan is discarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from zlib import crc32

import msgspec

from decoding.bench.contestant import EngineContestant, Reply, Task
from decoding.bench.counts import Counts
from decoding.bench.scripts import Script, Tokens, prompt_of
from decoding.bench.tables.report import is_page, write_figures
from decoding.core.files.output import check_output, is_json_of
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine

NONE = "none"
CHAIN = "suffix-chain"


class Row(Counts, frozen=True, kw_only=True):
    """Sums over a script's replies. fingerprint: of their tokens."""

    method: str
    workload: str
    temperature: float
    nodes: int
    accepted: int
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
    """A registered method, or "suffix-chain", its published form without branches."""
    if label == CHAIN:
        return Way(label, SpeculationParams(method="suffix", without=frozenset(("branches",))))
    return Way(label, SpeculationParams(method=label))


def measure_row(engine: Engine, script: Script, temperature: float, way: Way, nodes: int) -> Row:
    """Answer all turns of the script, one after the other, in an empty session of a server that has learned nothing."""
    with engine.sessions.apart():
        replies = _replies(engine, script, temperature, way, nodes)
    return Row(
        method=way.label,
        workload=script.name,
        temperature=temperature,
        nodes=nodes,
        tokens=sum(len(reply.tokens) for reply in replies),
        forwards=sum(reply.forwards for reply in replies),
        drafted=sum(reply.drafted for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
        fingerprint=crc32(b"".join(reply.tokens.tobytes() for reply in replies)),
    )


def _replies(engine: Engine, script: Script, temperature: float, way: Way, nodes: int) -> list[Reply]:
    contestant = EngineContestant(engine, way.label, way.at(nodes))
    before: list[Tokens] = []
    replies: list[Reply] = []
    most = engine.model.max_model_len - script.max_tokens
    for turn in script.turns:
        prompt = prompt_of(turn, before, most)
        task = Task(
            prompt=prompt,
            max_tokens=script.max_tokens,
            temperature=temperature,
            seed=turn.seed,
            ignore_eos=script.ignore_eos,
            prediction=turn.prediction,
        )
        replies.append(contestant.answer(task))
        before = [prompt, replies[-1].tokens]
    return replies


def load_kept(path: Path, plan: Plan, machine: str) -> Kept:
    """The rows of an earlier run of the same plan, or no rows."""
    check_output(path, is_json_of(Kept))
    check_output(path.with_suffix(".md"), is_page)
    if path.is_file():
        kept = msgspec.json.decode(path.read_bytes(), type=Kept)
        if kept.plan == plan:
            return kept
    return Kept(plan=plan, machine=machine)


def write_kept(path: Path, kept: Kept) -> None:
    write_figures(path, kept, Kept)
