"""Trees of a draft model by rules: DynaTree's own, and by other rules a chain and a fixed tree.

Owns what one request's drafting remembers: the tree under way and the history of acceptance. Trees that are grown by
estimated chances instead are `one_tree`'s; the draft model itself, its slots and the rounds `draft_model`'s.
Invariant: one growth, many rules.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Verdict, root_only
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.growth import ModelTree, Rounds, Rules, even_rules
from decoding.drafting.draft_model.state import DraftModelState, DraftRows
from decoding.drafting.drafter import FixedBudgetDrafter

ABLATIONS = ("breadth", "depth", "history")

LINEAR_LENGTH = 8  # K of the paper's linear baseline
FIXED_DEPTH = 5
FIXED_TAU = 0.05


class History(NamedTuple):
    """How the rules follow the acceptance of the last `window` trees: steps in proportion to its distance from `aim`
    (DynaTree, section 3.3, historical adjustment)."""

    window: int = 10
    aim: float = 0.7
    depth_step: float = 1.0
    confidence_step: float = 0.05


def linear_rules(speculation: SpeculationParams) -> Rules:
    """A chain of K tokens: every node has one child, whatever its probability."""
    return even_rules(1, LINEAR_LENGTH if speculation.max_depth is None else speculation.max_depth)


def fixed_rules(speculation: SpeculationParams) -> Rules:
    """A tree of `branching` children a node down to `max_depth`, without what falls below `min_probability`."""
    depth = FIXED_DEPTH if speculation.max_depth is None else speculation.max_depth
    tau = FIXED_TAU if speculation.min_probability is None else speculation.min_probability
    return even_rules(speculation.branching, depth, tau)


def dynamic_rules(speculation: SpeculationParams) -> Rules:
    """DynaTree's rules with the paper's numbers.

    `without` leaves out "breadth" (two children everywhere) or "depth" (no gate, base depth).
    """
    rules = Rules()
    if "breadth" in speculation.without:
        rules = rules._replace(b_min=rules.b_mid, b_max=rules.b_mid)
    if "depth" in speculation.without:
        rules = rules._replace(d_max=rules.d_base, rho_stop=0.0)
    if speculation.max_depth is not None:
        rules = rules._replace(d_max=speculation.max_depth, d_base=min(rules.d_base, speculation.max_depth))
    if speculation.min_probability is not None:
        rules = rules._replace(tau=speculation.min_probability)
    return rules


class ModelDrafter(FixedBudgetDrafter):
    """One request's trees from a draft model, by `rules`.

    Children are the draft model's candidates in the order of log q plus the request's own noise at their position
    (q at its temperature and filters), so that draws are coupled to the target's. When the budget binds, the nodes
    most likely to be accepted win, wherever they stand. history: None where the rules stay as they are.
    """

    def __init__(self, request: Request, state: DraftModelState, rules: Rules, history: History | None = None) -> None:
        super().__init__(request)
        self._state = state
        state.grow_with(self)
        self._rules = rules
        self._history = history
        self._acceptance: deque[float] = deque(maxlen=history.window if history else 1)
        self._d_base = float(rules.d_base)
        self._under_way: ModelTree | None = None
        self._rows: IntArray = np.zeros(0, np.int32)  # of the draft forwards, that ran the nodes proposed last

    def prepare(self, budget: DraftBudget) -> bool:
        return budget.most_rounds >= 1

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        rounds = Rounds(most_rows, most_depth)
        self._under_way = ModelTree(self._request, self._rules, budget, rounds, self._state.vocab_size)

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._under_way is not None, "no tree was begun"
        if self._state.is_block:
            self._under_way.grow_block(top)
            return None
        return self._under_way.grow(top)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step; the root alone where the draft model was not up to date."""
        grown, self._under_way = self._under_way, None
        if grown is None:
            return root_only(int(self._request.tokens[-1]))
        tree, self._rows = grown.best(budget.max_nodes)
        return tree

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002 - asks for none
        if tree.num_drafted == 0:
            return
        rows = tree.of_nodes(self._rows)[verdict.path[1:]]
        self._state.keep(rows[rows >= 0])
        if self._history is not None:
            self._adjust(self._history, verdict.num_accepted / tree.num_drafted)

    def _adjust(self, history: History, acceptance: float) -> None:
        """Draft deeper and narrower trees while more is accepted than aimed at, shallower and wider ones while less."""
        self._acceptance.append(acceptance)
        excess = sum(self._acceptance) / len(self._acceptance) - history.aim
        rules = self._rules
        self._d_base = min(max(self._d_base + history.depth_step * excess, 1.0), max(rules.d_max - 1.0, 1.0))
        tau_high = min(max(rules.tau_high - history.confidence_step * excess, 0.0), 1.0)
        self._rules = rules._replace(d_base=round(self._d_base), tau_high=tau_high)
