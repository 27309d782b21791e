"""Drafting costs no reply more than it may, whatever a forward and the host take: by counted costs, no clock is read.

The device answers at once. Seconds are those that a forward and the host are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from decoding.bench.host.device import Answers
from decoding.bench.host.engine import engine_over, request_of
from decoding.core.speculation_params import SpeculationParams
from decoding.costs.price import CostCurve, Curves
from decoding.drafting.draft_model.state import DraftCost
from decoding.engine.step_costs import HostStep

LARGE = CostCurve(base=7.2e-3, token=4e-5, key=2e-9, few=64, few_token=1e-5)  # an 8B on an H100
SMALL = CostCurve(base=4e-4, token=4e-6, key=1e-11, few=64, few_token=1e-6)  # gosling there, where the host is all
STEP, EACH, PROBE, TREE = 4e-4, 2e-5, 3e-5, 8e-5  # seconds of the host: of a step, a request, a probe, a tree
PROMPT_LEN, NUM_TOKENS = 40, 128  # of a prompt, of a reply
RANDOM, REPEATED = 500, 1  # of how many tokens a text is made


@dataclass
class Counted(Curves):
    """What steps take by a forward's curve and the host's seconds; a step of prompts is not counted."""

    forward: CostCurve = LARGE
    seconds: float = 0.0
    num_trees: int = 0

    def note_step(self, host: HostStep, costs: Sequence[DraftCost], num_tokens: int = 1) -> None:  # noqa: ARG002
        beside = STEP + EACH * host.num_requests + PROBE * host.num_probed + TREE * host.num_trees
        self.seconds += self.forward.step_seconds([num_tokens], [0]) + beside
        self.num_trees += host.num_trees

    def refine(self) -> None:
        """Nothing was timed."""


def tokens_a_second(method: str, num_streams: int, forward: CostCurve, num_words: int, is_known: bool = True) -> float:
    """Of so many replies at a time. is_known: whether the host's part in drafting has a price."""
    plain = replace(forward, base=forward.base + STEP + EACH * num_streams)
    costs = Counted(replace(plain, tree=TREE, probe=PROBE) if is_known else plain, forward=replace(forward, key=0.0))
    engine = engine_over(Answers(num_words), num_streams, costs)
    for number in range(num_streams):
        engine.add(request_of(number, SpeculationParams(method=method), NUM_TOKENS, PROMPT_LEN))
    while engine.has_work:
        engine.step()
    return num_streams * NUM_TOKENS / costs.seconds


@pytest.mark.parametrize("forward", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("num_streams", [1, 8, 32, 64])
def test_useless_drafts_cost_little_at_any_load(num_streams: int, forward: CostCurve) -> None:
    plain, auto = (tokens_a_second(method, num_streams, forward, RANDOM) for method in ("none", "auto"))
    assert auto >= 0.97 * plain


def test_they_would_cost_much_if_the_hosts_part_had_no_price() -> None:
    plain = tokens_a_second("none", 32, SMALL, RANDOM)
    assert tokens_a_second("auto", 32, SMALL, RANDOM, is_known=False) < 0.97 * plain


@pytest.mark.parametrize(("num_streams", "forward"), [(1, SMALL), (1, LARGE), (32, LARGE)])
def test_what_can_be_foretold_is_drafted_all_the_same(num_streams: int, forward: CostCurve) -> None:
    plain, auto = (tokens_a_second(method, num_streams, forward, REPEATED) for method in ("none", "auto"))
    assert auto > 1.5 * plain
