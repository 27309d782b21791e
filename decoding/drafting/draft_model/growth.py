"""A tree that grows depth by depth from what a draft model says after each node: one growth, many rules.

Owns the tree under way. A node has two numbers: its path probability under the draft model, which the rules of
DynaTree (section 3.3) ask for, and the same given the request's own noise, which decides who gets the budget.
Invariant: a child comes after its parent and is never likelier, so the likeliest nodes are a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.core.ranking import places_of_best
from decoding.core.request import Request
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import DraftTree, IntArray, Source
from decoding.costs.price import DraftBudget
from decoding.drafting.draft_model.state import DraftRows
from decoding.drafting.tree.candidates import COUPLED, DraftLaw, allocate_candidates, draft_law, rank_candidates
from decoding.kernels.numba_kernel import kernel

# row: which row of the draft forwards ran the node, or -1; probability: of its path; chance: that it is accepted.
_NODE = np.dtype(
    [("token", "i4"), ("parent", "i4"), ("depth", "i4"), ("row", "i4"), ("probability", "f8"), ("chance", "f8")]
)
_ROOT: IntArray = np.zeros(1, np.int32)
Nodes = NDArray[np.void]  # of `_NODE`


class Rules(NamedTuple):
    """How a tree grows, in the paper's terms and by default with its numbers (DynaTree, section 3.3).

    b_min, b_mid, b_max: children of a node whose best candidate has at least probability tau_high, at least
    tau_low, or less. A node at depth d of path probability p is expanded if d < d_max, p >= rho_stop, and d < d_base or
    p > rho_deep. tau: nodes of less path probability are not drafted. beam: nodes of a depth that are expanded at most
    (EAGLE-2, section 4.1); 0 for as many as there may be nodes, of all depths together.
    """

    b_min: int = 1
    b_mid: int = 2
    b_max: int = 3
    tau_high: float = 0.9
    tau_low: float = 0.4
    d_base: int = 5
    d_max: int = 8
    rho_stop: float = 0.1
    rho_deep: float = 0.5
    tau: float = 0.05
    beam: int = 0


def even_rules(breadth: int, depth: int, tau: float = 0.0, beam: int = 0) -> Rules:
    """Every node down to `depth` has `breadth` children, sure or not."""
    return Rules(breadth, breadth, breadth, d_base=depth, d_max=depth, rho_stop=0.0, tau=tau, beam=beam)


class Rounds(NamedTuple):
    """What the draft forwards of a tree may have: rows, all of them together, and how deep a row may be."""

    most_rows: int
    most_depth: int


class Top(NamedTuple):
    """What the draft model says after each row, as `TopTokens`."""

    ids: IntArray
    probabilities: NDArray[np.float32]


class Growing(NamedTuple):
    """What a tree grows by. root_position: that the root's children take; vocab_size: of the tokens that target and
    draft model both have; max_nodes: drafted ones; min_chance: of a node."""

    law: DraftLaw
    rules: Rules
    rounds: Rounds
    root_position: int
    vocab_size: int
    max_nodes: int
    min_chance: float


class ModelTree:
    """A tree under way, from the last token of `request` on. vocab_size: as in `Growing`."""

    def __init__(self, request: Request, rules: Rules, budget: DraftBudget, rounds: Rounds, vocab_size: int) -> None:
        if rules.beam == 0:
            rounds = rounds._replace(most_rows=min(rounds.most_rows, budget.max_nodes))
        rules = rules._replace(d_max=min(rules.d_max, budget.max_depth))
        law, price = draft_law(request.sampling, COUPLED), float(budget.price.usual)
        self._growing = Growing(law, rules, rounds, request.num_tokens, vocab_size, budget.max_nodes, price)
        self._nodes = np.array([(request.tokens[-1], -1, 0, -1, 1.0, 1.0)], _NODE)
        self._run = _ROOT
        self._row_parents = _ROOT[:0]
        self._budget = budget
        self._credit = budget.credit - budget.round_price - budget.row_price  # for more rows than the root's

    def grow(self, top: TopTokens) -> DraftRows | None:
        """Take in what follows the nodes that were run last, at first the root; those to run next, None for none."""
        said, first, num_rows = Top(top.ids, top.probabilities), len(self._nodes), len(self._row_parents)
        self._nodes = nodes = _with_children(self._nodes, self._run, said, self._growing)
        self._run = run = _chosen(nodes, first, num_rows, self._growing)
        price = self._budget.round_price + self._budget.row_price * len(run)
        if len(run) == 0 or price > self._credit:
            return None
        self._credit -= price
        nodes["row"][run] = np.arange(num_rows, num_rows + len(run))
        parents = nodes["row"][nodes["parent"][run]]  # the root's children follow the committed tokens: -1
        self._row_parents = np.concatenate((self._row_parents, parents))
        return DraftRows(nodes["token"][run], self._row_parents)

    def grow_block(self, top: TopTokens) -> None:
        """Take in what follows each depth, whatever the path, as far as the tree grows so."""
        for depth in range(len(top)):
            places = np.full(len(self._run), depth)
            if self.grow(TopTokens(top.ids[places], top.probabilities[places])) is None:
                return

    def best(self, max_nodes: int) -> tuple[DraftTree, IntArray]:
        """The root and the likeliest nodes, and of each the row of the draft forwards that ran it, or -1."""
        kept = places_of_best(self._nodes["chance"].copy(), 1 + max_nodes)  # of equals the earlier, so parents first
        nodes = self._nodes[kept]
        parents = np.searchsorted(kept, nodes["parent"]).astype(np.int32)
        sources = np.full(len(kept), Source.DRAFT_MODEL, np.int8)
        parents[0], sources[0] = -1, Source.ROOT
        return DraftTree(nodes["token"].copy(), parents, sources), nodes["row"]


@kernel
def _with_children(nodes: Nodes, run: IntArray, top: Top, growing: Growing) -> Nodes:
    """The nodes, and the children of node run[i] that row i of `top` and the rules speak for."""
    rules, law, candidates = growing.rules, growing.law, allocate_candidates(1)
    grown, num_nodes = np.empty(len(nodes) + len(run) * rules.b_max, nodes.dtype), len(nodes)
    grown[:num_nodes] = nodes
    for row, parent in enumerate(run):
        depth = nodes[parent]["depth"]
        if depth >= rules.d_max:
            continue
        rank_candidates(top, row, law, (0, growing.root_position + depth, growing.root_position), candidates)
        size = candidates.sizes[0]
        shares, weights = candidates.shares[0, :size], np.exp(candidates.scores[0, :size] - candidates.scores[0, 0])
        mass = min(1.0, top.probabilities[row].sum()) if law.temperature == 0 else 1.0  # shares are of the candidates
        probabilities = nodes[parent]["probability"] * mass * shares
        chances = nodes[parent]["chance"] * mass / weights.sum() * weights
        confidence = mass * shares.max()
        breadth = rules.b_mid if confidence >= rules.tau_low else rules.b_max
        for rank in range(min(rules.b_min if confidence >= rules.tau_high else breadth, size)):
            token, probability, chance = candidates.ids[0, rank], probabilities[rank], chances[rank]
            if probability >= rules.tau and chance >= growing.min_chance and token < growing.vocab_size:
                child = grown[num_nodes]
                child["token"], child["parent"], child["depth"], child["row"] = token, parent, depth + 1, -1
                child["probability"], child["chance"] = probability, chance
                num_nodes += 1
    return grown[:num_nodes]


@kernel
def _chosen(nodes: Nodes, first: int, num_rows: int, growing: Growing) -> IntArray:
    """Those of the nodes from `first` on that the draft model is to be run on next, ascending; often none. num_rows: of
    all draft forwards of the tree so far."""
    rules, rounds, chances = growing.rules, growing.rounds, nodes["chance"].copy()
    found, count = np.empty(len(nodes) - first, np.int32), 0
    for node in places_of_best(chances, 1 + growing.max_nodes):
        depth, probability = nodes[node]["depth"], nodes[node]["probability"]
        is_open = node >= first and depth < rules.d_max and depth <= rounds.most_depth
        if is_open and probability >= rules.rho_stop and (depth < rules.d_base or probability > rules.rho_deep):
            found[count] = node
            count += 1
    found, room = found[:count], rounds.most_rows - num_rows
    return found[places_of_best(chances[found], min(room, rules.beam) if rules.beam > 0 else room)]
