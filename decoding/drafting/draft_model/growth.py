"""Grows a draft tree depth by depth from what the draft model says after each node: one builder, many rules.

Owns the compiled builder. A node has two numbers: its path probability under the draft model, which the rules of
DynaTree (section 3.3) ask for, and its chance to be accepted, by what such nodes have proved to be worth, which
decides who gets the budget. Invariant: a child is never likelier than its parent, so the likeliest nodes are a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray, Source
from decoding.drafting.tree.candidates import Candidates, DraftLaw, allocate_candidates, rank_candidates
from decoding.drafting.tree.nodes import Nodes, put_node, put_root
from decoding.drafting.tree.nodes import allocate as allocate_nodes

NUM_WEIGHT_CLASSES = 12
NUM_CLASSES = 2 * NUM_WEIGHT_CLASSES  # of a node's best child, then of the others
_DRAFT_MODEL = int(Source.DRAFT_MODEL)
_NOT_RUN = -1


class Rules(NamedTuple):
    """How a tree grows, in the paper's terms (DynaTree, section 3.3).

    b_min, b_mid, b_max: children of a node whose best candidate has at least probability tau_high, at least
    tau_low, or less. A node at depth d of path probability p is expanded if d < d_max, p >= rho_stop, and d < d_base or
    p > rho_deep. tau: nodes of less path probability are not drafted.
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


class Limits(NamedTuple):
    """budget: drafted nodes. min_chance: what one must be worth at least; round_price: what a further draft forward
    must promise, in tokens. most_rows: rows that all draft forwards of this tree may have; most_depth: of a row;
    vocab_size: of the tokens that target and draft model both have."""

    budget: int
    min_chance: float
    round_price: float
    most_rows: int
    most_depth: int
    vocab_size: int


class Buffers(NamedTuple):
    """Room for a tree of n nodes. probabilities: float64 [n], of the path; classes: int32 [n], evidence; rows: int32
    [n], which row of the draft forwards ran the node, or -1. candidates: of the rows at hand."""

    nodes: Nodes
    probabilities: NDArray[np.float64]
    classes: IntArray
    rows: IntArray
    candidates: Candidates


class Top(NamedTuple):
    """What the draft model says after each row, as `TopTokens`."""

    ids: IntArray
    probabilities: NDArray[np.float32]


class Growth(NamedTuple):
    """Everything one tree grows by and into. chances: float32 [NUM_CLASSES], of each class of evidence; root_position:
    the absolute position that the root's children take."""

    buffers: Buffers
    law: DraftLaw
    rules: Rules
    limits: Limits
    chances: NDArray[np.float32]
    root_position: int


def allocate(budget: int, most_children: int) -> Buffers:
    """Room for every child of every node that may be expanded: the root and at most `budget` others."""
    num_nodes = 1 + (budget + 1) * most_children
    return Buffers(
        nodes=allocate_nodes(num_nodes),
        probabilities=np.ones(num_nodes, np.float64),
        classes=np.zeros(num_nodes, np.int32),
        rows=np.full(num_nodes, _NOT_RUN, np.int32),
        candidates=allocate_candidates(budget + 1),
    )


@nb.njit(cache=True)
def plant(buffers: Buffers, token: int) -> None:
    """A tree of the root alone."""
    put_root(buffers.nodes, token)
    buffers.probabilities[0] = 1.0
    buffers.rows[0] = _NOT_RUN


@nb.njit(cache=True)
def weight_class(weight: float, rank: int) -> int:
    """The evidence class of a node: its weight among its siblings in steps, and whether it is the best of them."""
    step = NUM_WEIGHT_CLASSES - 1
    for index, bound in enumerate((0.999, 0.99, 0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15, 0.06, 0.02)):
        if weight >= bound:
            step = index
            break
    return step if rank == 0 else NUM_WEIGHT_CLASSES + step


@nb.njit(cache=True)
def add_children(growth: Growth, num_nodes: int, expanded: IntArray, top: Top) -> int:
    """Give node `expanded[i]` the children that row i of `top` and the rules speak for; the new number of nodes."""
    buffers, rules, limits = growth.buffers, growth.rules, growth.limits
    law, root_position = growth.law, growth.root_position
    nodes, candidates, probabilities = buffers.nodes, buffers.candidates, buffers.probabilities
    for row in range(len(expanded)):
        parent = expanded[row]
        if nodes.depths[parent] >= rules.d_max:
            continue
        position = root_position + nodes.depths[parent]
        rank_candidates(top, row, law, (row, position, root_position), candidates)
        size = candidates.sizes[row]
        mass = top.probabilities[row].sum() if law.temperature == 0 else 1.0  # shares are of the candidates alone
        confidence = 0.0
        for rank in range(size):
            confidence = max(confidence, mass * candidates.shares[row, rank])
        breadth = rules.b_max
        if confidence >= rules.tau_high:
            breadth = rules.b_min
        elif confidence >= rules.tau_low:
            breadth = rules.b_mid
        for rank in range(min(breadth, size)):
            probability = probabilities[parent] * mass * candidates.shares[row, rank]
            kind = weight_class(candidates.weights[row, rank], rank)
            chance = nodes.scores[parent] * growth.chances[kind]
            token = candidates.ids[row, rank]
            if probability < rules.tau or chance < limits.min_chance or token >= limits.vocab_size:
                continue
            put_node(nodes, num_nodes, parent, token, _DRAFT_MODEL, chance)
            probabilities[num_nodes] = probability
            buffers.classes[num_nodes] = kind
            buffers.rows[num_nodes] = _NOT_RUN
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def choose_expanded(growth: Growth, first: int, num_nodes: int, num_rows: int, hope: float) -> IntArray:
    """int32: those of the nodes from `first` on that the draft model is to be run on next, ascending; often none.

    num_rows: run so far. hope: how often a node's best child is accepted once the node is.
    """
    buffers, rules, limits = growth.buffers, growth.rules, growth.limits
    nodes = buffers.nodes
    least = _least_score(nodes.scores[1:num_nodes], limits.budget)
    found = np.empty(num_nodes - first, np.int32)
    count = 0
    promise = 0.0
    for node in range(first, num_nodes):
        probability, depth, score = buffers.probabilities[node], nodes.depths[node], nodes.scores[node]
        is_open = depth < rules.d_max and depth <= limits.most_depth and probability >= rules.rho_stop
        is_open = is_open and (depth < rules.d_base or probability > rules.rho_deep)
        if is_open and score >= least and score * hope >= limits.min_chance:
            found[count] = node
            promise += score * hope - limits.min_chance
            count += 1
    if promise < limits.round_price:
        return found[:0]
    room = limits.most_rows - num_rows
    if count > room:
        order = np.argsort(-nodes.scores[found[:count]], kind="mergesort")
        return np.sort(found[order[:room]])
    return found[:count]


@nb.njit(cache=True)
def _least_score(scores: NDArray[np.float32], budget: int) -> float:
    """What a node must score at least to be among the `budget` best."""
    if len(scores) <= budget or budget == 0:
        return 0.0
    return float(np.sort(scores)[len(scores) - budget])


@nb.njit(cache=True)
def harvest_best(buffers: Buffers, num_nodes: int, budget: int) -> IntArray:
    """int32, ascending: the root and the `budget` likeliest nodes, which form a tree; the buffers' nodes become it."""
    nodes = buffers.nodes
    kept = np.arange(num_nodes).astype(np.int32)
    if num_nodes - 1 > budget:
        order = np.argsort(-nodes.scores[:num_nodes], kind="mergesort")  # of equals the earlier, so parents first
        kept = np.sort(kept[order[: budget + 1]])
    places = np.zeros(num_nodes, np.int32)
    for place, node in enumerate(kept):
        places[node] = place
        if place == node:
            continue
        nodes.tokens[place], nodes.depths[place] = nodes.tokens[node], nodes.depths[node]
        nodes.sources[place], nodes.scores[place] = nodes.sources[node], nodes.scores[node]
        nodes.parents[place] = places[nodes.parents[node]]
        buffers.classes[place], buffers.rows[place] = buffers.classes[node], buffers.rows[node]
    return kept
