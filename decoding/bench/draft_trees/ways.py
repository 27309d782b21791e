"""The methods that draft-model trees are compared with, and the settings that are swept.

Owns the paper's own numbers (DynaTree, section 4.2 and appendix A). Knows nothing of engines or tables.
Invariant: a label names exactly one way of drafting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decoding.bench.contestant import EngineContestant
from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.draft_model.dynamic import History, ModelDrafter
from decoding.drafting.draft_model.growth import Rules
from decoding.drafting.drafter import Drafter
from decoding.drafting.registry import StartDrafter
from decoding.drafting.sources import Sources
from decoding.engine.engine import Engine

NONE, AUTO, AGAIN = "none", "auto", "none, again"
LINEAR, FIXED, DYNAMIC, PAPER = "linear", "fixed", "dynamic", "dynamic, paper's rules"
FIXED_CUT = "fixed, its likeliest nodes"

PAPER_RULES = Rules()
PAPER_HISTORY = History(window=10, aim=0.7, depth_step=1.0, confidence_step=0.05)
PAPER_BUDGETS = (8, 16, 60)
MOST_NODES = 60  # of a tree whose size is left to its rules
ABLATION_NODES = (60, 16)  # the second is a small budget, for which the registered rules are others
ABLATION = {
    "fixed tree": ("breadth", "depth", "history"),
    "+ breadth": ("depth", "history"),
    "+ depth": ("breadth", "history"),
    "+ breadth and depth": ("history",),
    "+ breadth, depth and history": (),
}

DEPTHS = (2, 3, 5, 8, 12)
BRANCHINGS = (1, 2, 3, 4)
PRUNINGS = (0.02, 0.05, 0.1, 0.2, 0.4)
BEST_FIXED = (8, 3, 0.1)  # the paper's D, B and tau
CHAINS = (1, 2, 4, 8, 16)
SMALL_BUDGETS = (2, 4, 8, 16, 32)
THRESHOLDS = ((0.95, 0.4), (0.9, 0.4), (0.8, 0.4), (0.7, 0.4), (0.9, 0.2), (0.9, 0.6), (0.7, 0.2))


@dataclass(frozen=True, slots=True)
class Way:
    """One way of drafting. start_drafter: makes a drafter with special rules, which a request cannot name."""

    label: str
    speculation: SpeculationParams
    start_drafter: StartDrafter | None = None

    def on(self, engine: Engine) -> EngineContestant:
        return EngineContestant(engine, self.label, self.speculation, start_drafter=self.start_drafter)


def plain(label: str = NONE) -> Way:
    return Way(label, SpeculationParams(method="none", max_nodes=0))


def linear(length: int) -> Way:
    """A chain of K tokens."""
    return Way(f"{LINEAR} K={length}", SpeculationParams(method="linear", max_depth=length, max_nodes=MOST_NODES))


def fixed(depth: int, branching: int, tau: float, nodes: int | None = None) -> Way:
    """A tree of fixed depth and branching. nodes: keep only so many of the most likely nodes."""
    label = f"{FIXED} D={depth} B={branching} τ={tau:g}" if nodes is None else f"{FIXED_CUT} {nodes}"
    return Way(
        label,
        SpeculationParams(
            method="fixed",
            max_depth=depth,
            branching=branching,
            min_probability=tau,
            max_nodes=MOST_NODES if nodes is None else nodes,
        ),
    )


def dynamic(nodes: int | None, *without: str) -> Way:
    """The registered method. nodes: None adds a node only if it is worth its price."""
    parts = "".join(f", without {part}" for part in without)
    budget = "own budget" if nodes is None else f"{nodes} nodes"
    return Way(
        f"{DYNAMIC}, {budget}{parts}",
        SpeculationParams(method="dynamic", max_nodes=nodes, without=frozenset(without)),
    )


def by_rules(label: str, nodes: int, rules: Rules, history: History | None) -> Way:
    """Trees grown by the given rules, with at most `nodes` nodes."""

    def start(request: Request, sources: Sources) -> Drafter:
        assert sources.state is not None
        return ModelDrafter(request, sources.state, rules, history)

    return Way(label, SpeculationParams(method="dynamic", max_nodes=nodes), start)


def paper(nodes: int) -> Way:
    return by_rules(f"{PAPER}, {nodes} nodes", nodes, PAPER_RULES, PAPER_HISTORY)


def thresholds(tau_high: float, tau_low: float) -> Way:
    """The paper's rules with other confidence thresholds, and without history, which would change them."""
    label = f"{DYNAMIC} τh={tau_high:g} τl={tau_low:g}"
    return by_rules(label, MOST_NODES, PAPER_RULES._replace(tau_high=tau_high, tau_low=tau_low), None)


def registered(method: str) -> Way:
    return Way(method, SpeculationParams(method=method))


def main_ways(is_sampled: bool) -> list[Way]:
    """The contestants of the main tables, `none` first."""
    others = ["spine", *(["stand"] if is_sampled else []), AUTO]
    return [
        plain(),
        linear(4),
        linear(8),
        fixed(5, 2, 0.05),
        fixed(*BEST_FIXED),
        *(paper(nodes) for nodes in PAPER_BUDGETS),
        dynamic(None),
        *(registered(method) for method in others),
        plain(AGAIN),
    ]


def ablation_ways() -> list[Way]:
    """`none`, then for each of `ABLATION_NODES` the steps of `ABLATION` from the fixed tree to the whole method."""
    return [plain(), *(dynamic(nodes, *without) for nodes in ABLATION_NODES for without in ABLATION.values())]


def sweep_ways() -> list[Way]:
    """One setting changed at a time, and every method at several sizes."""
    depth, branching, tau = BEST_FIXED
    return [
        plain(),
        *(linear(length) for length in CHAINS),
        *(fixed(each, branching, tau) for each in DEPTHS),
        *(fixed(depth, each, tau) for each in BRANCHINGS if each != branching),
        *(fixed(depth, branching, each) for each in PRUNINGS if each != tau),
        *(fixed(depth, branching, min(PRUNINGS), nodes) for nodes in SMALL_BUDGETS),
        *(paper(nodes) for nodes in SMALL_BUDGETS),
        *(dynamic(nodes) for nodes in SMALL_BUDGETS),
        *(thresholds(*pair) for pair in THRESHOLDS),
    ]


def contestants(engine: Engine, ways: Sequence[Way]) -> list[EngineContestant]:
    return [way.on(engine) for way in ways]
