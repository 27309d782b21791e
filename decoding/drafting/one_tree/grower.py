"""The one grower: best-first over the candidates of every source, in rounds where a draft model takes part.

A node's score is its chance to be accepted, the product along its path. The likeliest candidate of any node joins the
tree until none is worth its price. The draft model is run on nodes where it promises more than the stores know,
another depth each round, as long as the round is worth its price.
Invariant: a child is never likelier than its parent, so the likeliest nodes are a tree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.ranking import places_of_best, ranked
from decoding.core.tree import IntArray
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.one_tree.opening import NOT_RUN, Asked, open_node
from decoding.drafting.tree.frontier import peek, pop, push
from decoding.drafting.tree.growth import Growth
from decoding.drafting.tree.nodes import gain_of, put_node, put_root
from decoding.stores.evidence import NUM_SOURCES, is_named
from decoding.stores.judge import Levels, learn_hope, learn_token, set_of

_NOT_RUN = -2
_LIKELY = 2  # candidates of a node
_BEST = np.int64(0)  # the first rank


class Rounds(NamedTuple):
    """What the draft model may do for a tree. rows: int32 [n], the row that ran each node, -1 for the root's own, -2
    for none; hope: how often the target's token is one of the likeliest after a node that it ran; round_price,
    row_price: of a further forward and of each of its rows, in tokens; most_rows: of all forwards; most_depth: of a
    row."""

    rows: IntArray
    hope: float
    round_price: float
    row_price: float
    most_rows: int
    most_depth: int


@nb.njit(cache=True)
def plant(growth: Growth, asked: Asked, rounds: Rounds) -> None:
    """A tree of the root alone, not opened yet."""
    growth.heap[0] = 0
    put_root(growth.nodes, growth.tokens[len(growth.tokens) - 1])
    asked.heard.sizes[0] = -1
    rounds.rows[0] = _NOT_RUN


@nb.njit(cache=True)
def grow_from_stores(growth: Growth, asked: Asked, rounds: Rounds) -> tuple[int, float]:
    """The whole tree without the draft model: its number of nodes, and what it promises beyond their price."""
    plant(growth, asked, rounds)
    open_node(growth, asked, np.int64(0), asked.no_top, NOT_RUN)
    _offer(growth, asked, np.int64(0), _BEST)
    num_nodes, _ = _grow(growth, asked, rounds, np.int64(1), np.int64(0))
    nodes = growth.nodes
    return num_nodes, gain_of(nodes.scores, np.arange(num_nodes).astype(np.int32), growth.limits.min_chance)


@nb.njit(cache=True)
def grow_on(
    growth: Growth, asked: Asked, rounds: Rounds, num_nodes: int, run: IntArray, first_row: int, top: Top
) -> tuple[int, IntArray]:
    """The draft model was run on the nodes `run`: row i of `top` follows node run[i], as row first_row + i of all.
    The new number of nodes, and those to run it on next, often none."""
    for row, node in enumerate(run):
        rounds.rows[node] = first_row + row
        open_node(growth, asked, np.int64(node), top, np.int64(row))
        _offer(growth, asked, np.int64(node), _BEST)
    return _grow(growth, asked, rounds, num_nodes, first_row + len(run))


@nb.njit(cache=True)
def _grow(growth: Growth, asked: Asked, rounds: Rounds, num_nodes: int, num_rows: int) -> tuple[int, IntArray]:
    """Add the likeliest candidates, until the draft model is to be run on some; num_rows: that it has run so far for
    this tree. While it is to run again nothing below its nodes is looked at."""
    waiting = np.empty(len(growth.nodes.tokens), np.int32)
    asks = rounds.rows[0] != _NOT_RUN
    while True:
        num_nodes, num_waiting = _add_likeliest(growth, asked, rounds, num_nodes, asks, waiting)
        wanted = _choose(growth, asked, rounds, waiting[:num_waiting], num_rows)
        if len(wanted) > 0 or num_waiting == 0:
            return num_nodes, wanted
        asks = False


@nb.njit(cache=True)
def _add_likeliest(
    growth: Growth, asked: Asked, rounds: Rounds, num_nodes: int, asks: bool, waiting: IntArray
) -> tuple[int, int]:
    """Take candidates while they are worth it; those that the draft model might be run on wait, unoffered."""
    nodes, limits, heap = growth.nodes, growth.limits, growth.heap
    num_waiting = 0
    least = _least_score(nodes.scores, num_nodes, limits.max_nodes, 0.0)
    while heap[0] > 0 and num_nodes < len(nodes.tokens):
        if peek(heap) < limits.min_chance or peek(heap) <= least:
            break
        chance, parent, rank = pop(heap)
        _put(growth, asked, num_nodes, parent, rank, chance)
        rounds.rows[num_nodes] = _NOT_RUN
        _offer(growth, asked, parent, rank + 1)
        may_run = asks and rounds.rows[parent] != _NOT_RUN and nodes.depths[num_nodes] <= rounds.most_depth
        if nodes.depths[num_nodes] < limits.max_depth:
            open_node(growth, asked, np.int64(num_nodes), asked.no_top, NOT_RUN)
            if may_run:
                waiting[num_waiting] = num_nodes
                num_waiting += 1
            else:
                _offer(growth, asked, num_nodes, _BEST)
        num_nodes += 1
        least = _least_score(nodes.scores, num_nodes, limits.max_nodes, least)
    return num_nodes, num_waiting


@nb.njit(cache=True)
def _choose(growth: Growth, asked: Asked, rounds: Rounds, waiting: IntArray, num_rows: int) -> IntArray:
    """int32: those of the waiting nodes to run the draft model on, ascending; the others are offered as they are.

    A round must promise its price in what the model knows beyond the stores. Rows are few: of the likeliest node's
    child, grandchild and so on each is `hope` times as likely as the one before, and a node that is less likely than
    so many of them as there are rows left is passed over.
    """
    scores, num_left = growth.nodes.scores, max(0, rounds.most_rows - num_rows)
    order = ranked(scores[waiting])
    promise, count = 0.0, 0
    while count < min(len(order), num_left):
        node = waiting[order[count]]
        fallen = math.log(scores[node] / scores[waiting[order[0]]]) / math.log(rounds.hope)
        if count + fallen > num_left or scores[node] < rounds.row_price:
            break
        known = _best_chance(asked, node)  # the stores' own chain would go on by it: 1 / (1 - known) tokens a token
        promise += scores[node] * max(0.0, rounds.hope - known) / (1.0 - known) - rounds.row_price
        count += 1
    if promise < rounds.round_price:
        count = 0
    for node in waiting[order[count:]]:
        _offer(growth, asked, np.int64(node), _BEST)
    return waiting[places_of_best(scores[waiting], count)]


@nb.njit(cache=True, forceinline=True)
def _best_chance(asked: Asked, node: int) -> float:
    heard = asked.heard
    return float(heard.chances[node, heard.order[node, 0]]) if heard.sizes[node] > 0 else 0.0


@nb.njit(cache=True)
def _least_score(scores: NDArray[np.float32], num_nodes: int, budget: int, least: float) -> float:
    """What a further node must score more than, once the budget's nodes are there. least: as it was with fewer."""
    if num_nodes - 1 < budget:
        return 0.0
    if budget == 0:
        return 1.0
    while True:
        count, lowest = 0, 1.0
        for node in range(1, num_nodes):
            if scores[node] > least:
                count += 1
                lowest = min(lowest, scores[node])
        if count < budget:
            return least
        least = lowest


@nb.njit(cache=True, forceinline=True)
def _offer(growth: Growth, asked: Asked, node: int, rank: int) -> None:
    """Put a node's candidate of this rank among those that may join the tree."""
    heard = asked.heard
    if rank < heard.sizes[node] and growth.nodes.depths[node] < growth.limits.max_depth:
        chance = growth.nodes.scores[node] * heard.chances[node, heard.order[node, rank]]
        if chance >= growth.limits.min_chance:
            push(growth.heap, chance, node, rank)


@nb.njit(cache=True, forceinline=True)
def _put(growth: Growth, asked: Asked, node: int, parent: int, rank: int, chance: float) -> None:
    """Make a candidate of `parent` node number `node`, of the source that speaks most for it."""
    heard, stretch = asked.heard, asked.judge.stretch
    slot = heard.order[parent, rank]
    best, classes, naming = 0, heard.classes[parent, slot], 0
    for source in range(1, NUM_SOURCES):
        if is_named(classes[source]):
            naming |= 1 << source
            if best == 0 or stretch[classes[source]] > stretch[classes[best]]:
                best = source
    put_node(growth.nodes, node, parent, heard.ids[parent, slot], best, chance)
    growth.nodes.names[node] = naming
    heard.sizes[node] = -1


@nb.njit(cache=True)
def learn_text(growth: Growth, asked: Asked, rounds: Rounds, levels: Levels, came: IntArray) -> IntArray:
    """Show the sources text that came after the root while no tree was grown; returns as `learn_path`."""
    plant(growth, asked, rounds)
    for node in range(1, len(came)):
        put_node(growth.nodes, node, node - 1, came[node - 1], 0, 1.0)
        asked.heard.sizes[node] = -1
        rounds.rows[node] = _NOT_RUN
    return learn_path(growth, asked, rounds, levels, np.arange(len(came)).astype(np.int32), came)


@nb.njit(cache=True)
def learn_path(
    growth: Growth, asked: Asked, rounds: Rounds, levels: Levels, path: IntArray, came: IntArray
) -> IntArray:
    """Show the sources the text that came: token came[i] after node path[i]. int32 [1 + S]: how many of the tokens each
    source thought likeliest."""
    foretold = np.zeros(NUM_SOURCES, np.int32)
    for step in range(len(path)):
        node, token = path[step], came[step]
        if rounds.rows[node] != _NOT_RUN:
            was_likely = _is_likely(asked, node, token)
            learn_hope(levels.request, was_likely)
            learn_hope(levels.session, was_likely)
            learn_hope(levels.server, was_likely)
        if asked.heard.sizes[node] < 0:
            open_node(growth, asked, np.int64(node), asked.no_top, NOT_RUN)
        for source in range(1, NUM_SOURCES):
            foretold[source] += asked.heard.firsts[node, source] == token
        for slot in range(asked.heard.sizes[node]):
            classes = asked.heard.classes[node, slot]
            is_it = asked.heard.ids[node, slot] == token
            speaking = set_of(classes)
            _learn(levels, speaking, classes, is_it)
    return foretold


@nb.njit(cache=True)
def _is_likely(asked: Asked, node: int, token: int) -> bool:
    """Whether a token is among the likeliest candidates of a node."""
    heard, found = asked.heard, False
    for rank in range(min(heard.sizes[node], _LIKELY)):
        found = found or heard.ids[node, heard.order[node, rank]] == token
    return found


@nb.njit(cache=True, forceinline=True)
def _learn(levels: Levels, speaking: int, classes: NDArray[np.int16], is_it: bool) -> None:
    learn_token(levels.request, speaking, classes, is_it)
    learn_token(levels.session, speaking, classes, is_it)
    learn_token(levels.server, speaking, classes, is_it)
