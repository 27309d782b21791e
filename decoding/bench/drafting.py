"""Times drafting without a model: `gander bench drafting`.

Owns synthetic requests whose text partly repeats, and the clock. Reports the microseconds of a step's proposing and
observing after warm-up; what a tree is worth is measured elsewhere.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from decoding.bench.options import positive
from decoding.bench.tables.table import Table
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.costs.price import DraftBudget
from decoding.drafting.registry import available, start
from decoding.engine.compiling.drafters import warm_up
from decoding.sampling.verify import walk
from decoding.stores.session import lone_session
from decoding.stores.successor_table import NUM_SUCCESSORS

VOCABULARY = 2048
PROMPT_LEN = 1000
WARM_UP_STEPS = 100
SESSION_BYTES = 64 * 2**20  # the most bytes of a session


def synthetic_text(random: np.random.Generator, length: int) -> NDArray[np.int32]:
    """Phrases from a Zipf-like stock of forty, with one token in eight replaced, so that matches are found but end."""
    stock = [random.integers(0, VOCABULARY, int(random.integers(4, 24))) for _ in range(40)]
    picks = np.minimum(random.zipf(1.5, length) - 1, len(stock) - 1)
    text = np.concatenate([stock[pick] for pick in picks])[:length].astype(np.int32)
    is_replaced = random.random(length) < 0.125
    text[is_replaced] = random.integers(0, VOCABULARY, int(is_replaced.sum()))
    return text


def plausible_top(random: np.random.Generator, tokens: NDArray[np.int32]) -> TopTokens:
    """Ten successors for each token, a function of the token, in falling probability."""
    ids = (tokens[:, None] * 31 + np.arange(NUM_SUCCESSORS) * 97 + 1) % VOCABULARY
    probabilities = np.sort(random.dirichlet(np.full(NUM_SUCCESSORS, 0.3), len(tokens)))[:, ::-1]
    return TopTokens(ids.astype(np.int32), np.ascontiguousarray(probabilities, np.float32))


class Drafted:
    """One sequence to draft for. num_steps: its text is long enough for so many. seed: of its text."""

    def __init__(self, method: str, budget: int, num_steps: int, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._text = synthetic_text(self._random, PROMPT_LEN + 4 * num_steps)
        self._request = Request(
            id=f"bench-{seed}",
            prompt=self._text[:PROMPT_LEN],
            sampling=SamplingParams(max_tokens=len(self._text)),
            speculation=SpeculationParams(method=method, max_nodes=budget),
        )
        self._budget = DraftBudget(budget)
        self._drafter = start(method, self._request, lone_session(SESSION_BYTES))
        self._drafter.observe_prefill(0, plausible_top(self._random, self._request.tokens))

    def propose(self) -> float:
        """Propose a tree; return the seconds."""
        began = time.perf_counter()
        self._tree = self._drafter.propose(self._budget)
        return time.perf_counter() - began

    def observe(self) -> float:
        """Observe the verdict on the proposed tree; return the seconds."""
        request, tree = self._request, self._tree
        top = plausible_top(self._random, tree.tokens)
        verdict = walk(tree, top.ids[:, 0].copy())
        request.extend(self._text[request.num_tokens : request.num_tokens + len(verdict.tokens)])
        began = time.perf_counter()
        self._drafter.observe(tree, verdict, top if self._drafter.num_top else None)
        return time.perf_counter() - began

    @property
    def num_drafted(self) -> int:
        return self._tree.num_drafted


def time_method(
    method: str, budget: int, num_steps: int, at_once: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """The seconds of each step's proposing and observing after warm-up, for all sequences together, and the mean number
    of drafted nodes per sequence and step."""
    sequences = [Drafted(method, budget, num_steps + WARM_UP_STEPS, seed) for seed in range(at_once)]
    propose_seconds, observe_seconds, drafted = [], [], 0
    for _ in range(num_steps + WARM_UP_STEPS):
        propose_seconds.append(sum(each.propose() for each in sequences))
        observe_seconds.append(sum(each.observe() for each in sequences))
        drafted += sum(each.num_drafted for each in sequences)
    nodes = drafted / (num_steps + WARM_UP_STEPS) / at_once
    return np.array(propose_seconds[WARM_UP_STEPS:]), np.array(observe_seconds[WARM_UP_STEPS:]), nodes


def main(argv: Sequence[str] | None = None) -> int:
    """Print a row for each method: median and 90th percentile."""
    parser = argparse.ArgumentParser(prog="gander bench drafting", description=__doc__)
    parser.add_argument("--budget", type=positive, default=60, help="drafted nodes per tree")
    parser.add_argument("--steps", type=positive, default=1000)
    parser.add_argument("--at-once", type=positive, default=1, help="sequences of a step, of a session each")
    chosen, rows = parser.parse_args(argv), []
    for method in available(has_draft_model=False):
        warm_up(method)
        propose, observe, nodes = time_method(method, chosen.budget, chosen.steps, chosen.at_once)
        columns = [1e6 * np.percentile(seconds, share) for seconds in (propose, observe) for share in (50, 90)]
        rows.append([method, f"{nodes:.1f}", *(f"{column:.1f}" for column in columns)])
    Console().print(Table(["method", "nodes", "propose, us", "p90", "observe, us", "p90"], rows).rich())
    return 0


if __name__ == "__main__":
    sys.exit(main())
