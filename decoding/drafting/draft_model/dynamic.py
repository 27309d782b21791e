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
from decoding.drafting.draft_model.growth import (
    ModelSource,
    Rounds,
    Rules,
    Top,
    allocate_model_buffers,
    grow_depth,
    harvest_best,
    most_nodes,
)
from decoding.drafting.draft_model.state import DraftModelState, DraftRows
from decoding.drafting.tree.candidates import COUPLED, draft_law
from decoding.drafting.tree.growth import Growth, allocate, limits_of
from decoding.drafting.tree.nodes import put_root, to_tree

ABLATIONS = ("breadth", "depth", "history")

PAPER = Rules()

LINEAR_LENGTH = 8  # K of the paper's linear baseline
FIXED_DEPTH = 5
FIXED_TAU = 0.05
_ROOT: IntArray = np.zeros(1, np.int32)


class History(NamedTuple):
    """How the rules follow the acceptance of the last `window` trees: steps in proportion to its distance from `aim`
    (DynaTree, section 3.3, historical adjustment)."""

    window: int = 10
    aim: float = 0.7
    depth_step: float = 1.0
    confidence_step: float = 0.05


def linear_rules(speculation: SpeculationParams) -> Rules:
    """A chain of K tokens: every node has one child, whatever its probability."""
    length = LINEAR_LENGTH if speculation.max_depth is None else speculation.max_depth
    return _fixed(1, length, 0.0)


def fixed_rules(speculation: SpeculationParams) -> Rules:
    """A tree of `branching` children a node down to `max_depth`, without what falls below `min_probability`."""
    depth = FIXED_DEPTH if speculation.max_depth is None else speculation.max_depth
    tau = FIXED_TAU if speculation.min_probability is None else speculation.min_probability
    return _fixed(speculation.branching, depth, tau)


def dynamic_rules(speculation: SpeculationParams) -> Rules:
    """DynaTree's rules with the paper's numbers.

    `without` leaves out "breadth" (two children everywhere) or "depth" (no gate, base depth).
    """
    rules = PAPER
    if "breadth" in speculation.without:
        rules = rules._replace(b_min=rules.b_mid, b_max=rules.b_mid)
    if "depth" in speculation.without:
        rules = rules._replace(d_max=rules.d_base, rho_stop=0.0)
    if speculation.max_depth is not None:
        rules = rules._replace(d_max=speculation.max_depth, d_base=min(rules.d_base, speculation.max_depth))
    if speculation.min_probability is not None:
        rules = rules._replace(tau=speculation.min_probability)
    return rules


def _fixed(breadth: int, depth: int, tau: float) -> Rules:
    return Rules(breadth, breadth, breadth, 1.0, 0.0, depth, depth, 0.0, 0.0, tau)


class ModelDrafter:
    """One request's trees from a draft model, by `rules`.

    Children are the draft model's candidates in the order of log q plus the request's own noise at their position
    (q at its temperature and filters), so that draws are coupled to the target's. When the budget binds, the nodes
    most likely to be accepted win, wherever they stand. history: None where the rules stay as they are.
    """

    num_top = 0

    def __init__(self, request: Request, state: DraftModelState, rules: Rules, history: History | None = None) -> None:
        self._request = request
        self._state = state
        state.grow_with(self)
        self._rules = rules
        self._history = history
        self._acceptance: deque[float] = deque(maxlen=history.window if history else 1)
        self._law = draft_law(request.sampling, COUPLED)
        self._allocate(16)
        self._d_base = float(rules.d_base)
        self._under_way: tuple[Growth, ModelSource] | None = None  # what the tree of this step grows by, once begun
        self._num_nodes = 0  # of that tree, root included
        self._row_parents: IntArray = _ROOT[:0]
        self._expanded = _ROOT

    def observe_prefill(self, start: int, top: TopTokens | None) -> None:
        pass

    def wants_model(self, budget: DraftBudget) -> bool:  # noqa: ARG002 - it has no other source
        return True

    def begin(self, budget: DraftBudget, most_rows: int, most_depth: int) -> None:
        if budget.max_nodes > self._room:
            self._allocate(budget.max_nodes)
        tokens, limits = self._request.tokens, limits_of(budget, self._rules.d_max)
        rounds = Rounds(min(most_rows, limits.max_nodes), most_depth)
        self._under_way = (
            Growth(tokens, limits, *self._buffers),
            ModelSource(self._law, self._rules, rounds, self._state.vocab_size, self._model_buffers),
        )
        put_root(self._buffers.nodes, int(tokens[-1]))
        self._num_nodes = 1
        self._row_parents = _ROOT[:0]
        self._expanded = _ROOT

    def grow(self, top: TopTokens) -> DraftRows | None:
        assert self._under_way is not None, "no tree was begun"
        growth, source = self._under_way
        nodes, rows, num_rows = growth.nodes, source.buffers.rows, len(self._row_parents)
        said = Top(top.ids, top.probabilities)
        self._num_nodes, expanded = grow_depth(growth, source, self._num_nodes, num_rows, self._expanded, said)
        if len(expanded) == 0:
            return None
        rows[expanded] = np.arange(num_rows, num_rows + len(expanded))
        parents = rows[nodes.parents[expanded]]  # the root's children follow the committed tokens: -1
        self._row_parents = np.concatenate((self._row_parents, parents))
        self._expanded = expanded
        return DraftRows(nodes.tokens[expanded], self._row_parents)

    def propose(self, budget: DraftBudget) -> DraftTree:
        """The tree that has grown in this step; the root alone where the draft model was not up to date."""
        if self._under_way is None:
            return root_only(int(self._request.tokens[-1]))
        nodes = self._buffers.nodes
        num_kept = len(harvest_best(nodes, self._model_buffers.rows, self._num_nodes, budget.max_nodes))
        self._under_way = None
        return to_tree(nodes, num_kept)

    def observe(self, tree: DraftTree, verdict: Verdict, top: TopTokens | None) -> None:  # noqa: ARG002 - asks for none
        path = verdict.path[1:]
        rows = tree.of_nodes(self._model_buffers.rows)[path] if tree.num_drafted else path
        self._state.keep(rows[rows >= 0])
        if tree.num_drafted == 0:
            return
        if self._history is not None:
            self._adjust(self._history, verdict.num_accepted / tree.num_drafted)

    def _allocate(self, max_nodes: int) -> None:
        num_nodes = most_nodes(max_nodes, self._rules.b_max)
        self._room = max_nodes
        self._buffers = allocate(num_nodes)
        self._model_buffers = allocate_model_buffers(num_nodes, max_nodes + 1)

    def _adjust(self, history: History, acceptance: float) -> None:
        """Draft deeper and narrower trees while more is accepted than aimed at, shallower and wider ones while less."""
        self._acceptance.append(acceptance)
        excess = sum(self._acceptance) / len(self._acceptance) - history.aim
        rules = self._rules
        self._d_base = min(max(self._d_base + history.depth_step * excess, 1.0), max(rules.d_max - 1.0, 1.0))
        tau_high = min(max(rules.tau_high - history.confidence_step * excess, 0.0), 1.0)
        self._rules = rules._replace(d_base=round(self._d_base), tau_high=tau_high)
