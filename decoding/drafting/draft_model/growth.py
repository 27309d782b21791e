"""Grows a draft tree depth by depth from what the draft model says after each node: one builder, many rules.

Owns the compiled builder. A node has two numbers: its path probability under the draft model, which the rules of
DynaTree (section 3.3) ask for, and the same given the request's own noise, which decides who gets the budget.
Invariant: a child is never likelier than its parent, so the likeliest nodes are a tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.ranking import places_of_best, ranked
from decoding.core.tree import IntArray, Source
from decoding.drafting.tree.candidates import Candidates, DraftLaw, allocate_candidates, rank_candidates
from decoding.drafting.tree.growth import Growth
from decoding.drafting.tree.nodes import Nodes, best_nodes, put_node

_DRAFT_MODEL = np.int64(Source.DRAFT_MODEL)
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


class Rounds(NamedTuple):
    """What the draft forwards of a tree may have: rows, all of them together, and how deep a row may be."""

    most_rows: int
    most_depth: int


class ModelBuffers(NamedTuple):
    """What the draft model knows of each of n nodes. probabilities: float64 [n], of the path; rows: int32 [n], which
    row of the draft forwards ran the node, or -1. candidates: of the rows at hand."""

    probabilities: NDArray[np.float64]
    rows: IntArray
    candidates: Candidates


class Top(NamedTuple):
    """What the draft model says after each row, as `TopTokens`."""

    ids: IntArray
    probabilities: NDArray[np.float32]


class ModelSource(NamedTuple):
    """Where candidates come from and who is asked for more. vocab_size: of the tokens that target and draft model both
    have."""

    law: DraftLaw
    rules: Rules
    rounds: Rounds
    vocab_size: int
    buffers: ModelBuffers


def most_nodes(max_nodes: int, most_children: int) -> int:
    """Every child of every node that may be expanded: the root and at most `max_nodes` others."""
    return 1 + (max_nodes + 1) * most_children


def allocate_model_buffers(num_nodes: int, num_rows: int) -> ModelBuffers:
    """num_rows: that one draft forward may have."""
    return ModelBuffers(
        probabilities=np.ones(num_nodes, np.float64),
        rows=np.full(num_nodes, _NOT_RUN, np.int32),
        candidates=allocate_candidates(num_rows),
    )


@nb.njit(cache=True)
def grow_depth(
    growth: Growth, source: ModelSource, num_nodes: int, num_rows: int, expanded: IntArray, top: Top
) -> tuple[int, IntArray]:
    """Take in what row i of `top` says after node `expanded[i]`: the new number of nodes, and which to run next.

    num_rows: of all draft forwards of the tree so far.
    """
    grown = _add_children(growth, source, num_nodes, expanded, top)
    return grown, _choose_expanded(growth, source, num_nodes, grown, num_rows)


@nb.njit(cache=True)
def _add_children(growth: Growth, source: ModelSource, num_nodes: int, expanded: IntArray, top: Top) -> int:
    """Give node `expanded[i]` the children that row i of `top` and the rules speak for; the new number of nodes."""
    nodes, limits, rules, buffers = growth.nodes, growth.limits, source.rules, source.buffers
    candidates, probabilities = buffers.candidates, buffers.probabilities
    root_position = len(growth.tokens)  # of the root's children
    for row in range(len(expanded)):
        parent = expanded[row]
        if nodes.depths[parent] >= limits.max_depth:
            continue
        position = root_position + nodes.depths[parent]
        rank_candidates(top, row, source.law, (row, position, root_position), candidates)
        size = candidates.sizes[row]
        mass = (
            top.probabilities[row].sum() if source.law.temperature == 0 else 1.0
        )  # shares are of the candidates alone
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
            chance = nodes.scores[parent] * mass * candidates.weights[row, rank]
            token = candidates.ids[row, rank]
            if probability < rules.tau or chance < limits.min_chance or token >= source.vocab_size:
                continue
            put_node(nodes, num_nodes, parent, token, _DRAFT_MODEL, chance)
            probabilities[num_nodes] = probability
            buffers.rows[num_nodes] = _NOT_RUN
            num_nodes += 1
    return num_nodes


@nb.njit(cache=True)
def _choose_expanded(growth: Growth, source: ModelSource, first: int, num_nodes: int, num_rows: int) -> IntArray:
    """int32: those of the nodes from `first` on that the draft model is to be run on next, ascending; often none."""
    nodes, limits, rules, rounds = growth.nodes, growth.limits, source.rules, source.rounds
    least = _least_score(nodes.scores[1:num_nodes], limits.max_nodes)
    found = np.empty(num_nodes - first, np.int32)
    count = 0
    for node in range(first, num_nodes):
        probability, depth, score = source.buffers.probabilities[node], nodes.depths[node], nodes.scores[node]
        is_open = depth < limits.max_depth and depth <= rounds.most_depth and probability >= rules.rho_stop
        is_open = is_open and (depth < rules.d_base or probability > rules.rho_deep)
        if is_open and score >= least and score >= limits.min_chance:
            found[count] = node
            count += 1
    room = rounds.most_rows - num_rows
    if count > room:
        return found[places_of_best(nodes.scores[found[:count]], room)]
    return found[:count]


@nb.njit(cache=True)
def _least_score(scores: NDArray[np.float32], budget: int) -> float:
    """What a node must score at least to be among the `budget` best."""
    if len(scores) <= budget or budget == 0:
        return 0.0
    return float(scores[ranked(scores)[budget - 1]])


@nb.njit(cache=True)
def harvest_best(nodes: Nodes, rows: IntArray, num_nodes: int, budget: int) -> IntArray:
    """int32, ascending: the root and the `budget` likeliest nodes, which form a tree; `nodes` and `rows` become it."""
    kept = best_nodes(nodes.scores, num_nodes, budget)
    places = np.zeros(num_nodes, np.int32)
    for place, node in enumerate(kept):
        places[node] = place
        if place == node:
            continue
        nodes.tokens[place], nodes.depths[place] = nodes.tokens[node], nodes.depths[node]
        nodes.sources[place], nodes.scores[place] = nodes.sources[node], nodes.scores[node]
        nodes.parents[place] = places[nodes.parents[node]]
        rows[place] = rows[node]
    return kept
