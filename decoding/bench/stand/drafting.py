"""What one STAND draft costs: look-ups, noise and tree, in microseconds. `python -m decoding.bench.stand.drafting`.

Owns a synthetic session as full as a long one. Knows no model: acceptance is measured elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from decoding.bench.machine import describe_machine
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import DraftBudget
from decoding.drafting.stand.stand import StandDrafter
from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.session import Session
from decoding.stores.successor_table import NUM_SUCCESSORS

VOCAB = 4096
TEXT_LEN = 400
LIMIT_MICROSECONDS = 200.0


@dataclass(frozen=True, slots=True)
class DraftCost:
    """Microseconds of one `propose`: the median and the slowest twentieth; nodes: the median tree."""

    shape: str
    temperature: float
    nodes: float
    median: float
    slow: float


def measure(budget: int, rounds: int, num_rows: int, session_bytes: int = 16 * 2**20) -> list[DraftCost]:
    """Drafts of `budget` nodes in a session that has seen `num_rows` rows of Zipf-like text."""
    random = np.random.default_rng(0)
    session = Session("", "bench", session_bytes, AdjacencyTable(2**16))
    _fill(session, random, num_rows)
    shapes = {"best first": frozenset[str](), "static tree": frozenset(("best_first",))}
    costs = []
    for shape, without in shapes.items():
        for temperature in (0.0, 0.6, 1.0):
            seconds, nodes = [], []
            for seed in range(rounds):
                drafter = _drafter(session, _text(random, TEXT_LEN), temperature, seed, without)
                drafter.propose(DraftBudget(budget))
                started = time.perf_counter()
                tree = drafter.propose(DraftBudget(budget))
                seconds.append(1e6 * (time.perf_counter() - started))
                nodes.append(tree.num_drafted)
            costs.append(
                DraftCost(shape, temperature, median(nodes), median(seconds), float(np.percentile(seconds, 95)))
            )
    return costs


def _drafter(
    session: Session, prompt: NDArray[np.int32], temperature: float, seed: int, without: frozenset[str]
) -> StandDrafter:
    sampling = SamplingParams(max_tokens=8, temperature=temperature, seed=seed)
    speculation = SpeculationParams(method="stand", without=without)
    return StandDrafter(Request(id="bench", prompt=prompt, sampling=sampling, speculation=speculation), session)


def _text(random: np.random.Generator, length: int) -> NDArray[np.int32]:
    return np.minimum(random.zipf(1.3, length), VOCAB - 1).astype(np.int32)


def _fill(session: Session, random: np.random.Generator, num_rows: int) -> None:
    """Rows whose successors are as frequent tokens as the text itself has, so that look-ups go on from node to node."""
    probabilities = (0.6 ** np.arange(1, NUM_SUCCESSORS + 1)).astype(np.float32)
    for _ in range(num_rows // 100):
        contexts = _text(random, 4 * 100).reshape(100, 4)
        first = _text(random, 100)[:, None]
        ids = (first + np.arange(NUM_SUCCESSORS)) % VOCAB
        session.ngrams.harvest(contexts, ids.astype(np.int32), np.tile(probabilities, (100, 1)))


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 when a median is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m decoding.bench.stand.drafting", description=__doc__)
    parser.add_argument("--nodes", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--rows", type=int, default=100_000)
    chosen = parser.parse_args(argv)
    table = Table("tree", "temperature", "nodes", "median µs", "95% µs", title=describe_machine())
    costs = measure(chosen.nodes, chosen.rounds, chosen.rows)
    for cost in costs:
        numbers = (f"{cost.temperature:g}", f"{cost.nodes:g}", f"{cost.median:.0f}", f"{cost.slow:.0f}")
        table.add_row(cost.shape, *numbers)
    Console().print(table)
    return int(any(cost.median > LIMIT_MICROSECONDS for cost in costs))


if __name__ == "__main__":
    sys.exit(main())
