"""The one grower: best-first over the candidates of every source, in rounds where a draft model takes part.

A node's score is its chance to be accepted, the product along its path. The likeliest candidate of any node joins the
tree until none is worth its price. The draft model is run on nodes where it promises more than the stores know, and
ahead of the tree on what those go on with, in rounds that are worth their price. All that a tree grows from and into
lies in the request's buffers, at the address `at`.
Invariant: a child is never likelier than its parent, so the likeliest nodes are a tree.
"""

from __future__ import annotations

import math

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from decoding.core.ranking import places_of_best, ranked
from decoding.core.tree import IntArray, Source
from decoding.costs.price import DraftBudget, chain_gain, price_at, price_of
from decoding.drafting.draft_model.growth import Rounds, Top
from decoding.drafting.one_tree.buffers import (
    NO_ROW,
    NUM_ASKED,
    NUM_KNOWN,
    NUM_NODES,
    NUM_SAID,
    ROOT_ROW,
    TreeBuffers,
    read_buffers,
)
from decoding.drafting.one_tree.opening import open_node
from decoding.drafting.tree.frontier import peek, pop, push
from decoding.drafting.tree.nodes import best_nodes, part_of, put_node, put_root
from decoding.kernels.numba_kernel import kernel
from decoding.stores.context import index_more
from decoding.stores.evidence import NUM_SOURCES, PREDICTION, is_forced, is_named
from decoding.stores.successor_table import NUM_SUCCESSORS

for reckon in (price_at, price_of, chain_gain):
    register_jitable(reckon)
_BEST = np.int64(0)  # the first rank
_ROOT = np.int64(0)
_LIKELY = 0.3  # that the tree comes to a row that is run ahead of it
_NOWHERE = np.int64(-1)  # in place of a depth
NO_ROUNDS = Rounds(0, -1)
GRAMMAR = int(Source.GRAMMAR)
_PREDICTION_OR_GRAMMAR = 1 << GRAMMAR | 1 << int(PREDICTION)


@kernel(borrows=True)
def plant(at: int, num_known: int) -> None:
    """A tree of the root alone, the last of so many tokens, not opened yet."""
    buffers = read_buffers(at)
    buffers.counts[NUM_KNOWN], buffers.counts[NUM_NODES] = num_known, 1
    index_more(buffers.stores.context, buffers.tokens[:num_known])
    room = buffers.room
    room.heap[0] = 0
    buffers.counts[NUM_SAID] = buffers.counts[NUM_ASKED] = 0
    put_root(room.nodes, buffers.tokens[num_known - 1])
    room.candidates.sizes[0] = -1
    room.rows[0] = NO_ROW


@kernel(borrows=True)
def grow_from_stores(at: int, budget: DraftBudget) -> float:
    """The whole tree without the draft model, from a root that is opened; what it promises beyond the price of its
    nodes."""
    buffers = read_buffers(at)
    buffers.room.heap[0], buffers.counts[NUM_NODES] = 0, 1
    _offer(buffers, budget, _ROOT, _BEST)
    _grow(at, budget, NO_ROUNDS)
    num_nodes, scores = buffers.counts[NUM_NODES], buffers.room.nodes.scores
    gain = -price_of(budget.price, num_nodes - 1)
    for node in range(1, num_nodes):
        gain += scores[node]
    return gain


@kernel(borrows=True)
def grow_on(at: int, budget: DraftBudget, left: Rounds, top: Top) -> int:
    """The draft model says `top` after the rows asked for last, at first after the root. left: what further rounds may
    have. How many rows it is asked for by now; no more than before where the tree is grown."""
    buffers = read_buffers(at)
    room, counts = buffers.room, buffers.counts
    first = counts[NUM_SAID]
    num_said = min(len(top.ids), len(room.rows) - first)  # a block may be longer than any path here
    counts[NUM_SAID] += num_said
    said = room.run.top
    for row in range(num_said):
        for rank in range(NUM_SUCCESSORS):
            said.ids[first + row, rank] = top.ids[row, rank]
            said.probabilities[first + row, rank] = top.probabilities[row, rank]
    if first == 0:
        room.rows[0] = ROOT_ROW
    for node in range(counts[NUM_NODES]):
        if room.rows[node] + 1 >= first:
            open_node(at, np.int64(node))
            _offer(buffers, budget, np.int64(node), _BEST)
    return _grow(at, budget, left)


@kernel
def best_part(
    at: int, budget: DraftBudget, spent: float
) -> tuple[float, IntArray, IntArray, IntArray, NDArray[np.int8], IntArray]:
    """What the likeliest nodes within the budget promise beyond their price; which they are, ascending, and their
    tokens, parents, sources and names. spent: what drafting has cost so far, in tokens."""
    buffers = read_buffers(at)
    nodes = buffers.room.nodes
    kept = _worth_their_rate(
        nodes.scores, best_nodes(nodes.scores, buffers.counts[NUM_NODES], budget.max_nodes), budget, spent
    )
    return _gain_of(nodes.scores, kept, budget), kept, *part_of(nodes, kept)


@kernel(forceinline=True, borrows=True)
def _gain_of(scores: NDArray[np.float32], kept: IntArray, budget: DraftBudget) -> float:
    """What these nodes, the root first, promise beyond their price, in tokens."""
    gain = -price_of(budget.price, len(kept) - 1)
    for node in kept[1:]:
        gain += scores[node]
    return gain


@kernel
def _worth_their_rate(scores: NDArray[np.float32], kept: IntArray, budget: DraftBudget, spent: float) -> IntArray:
    """Those of the nodes, ascending, that are worth their price at the rate of a step with the likelier ones."""
    emitted, cost, count = budget.others + 1.0, budget.fixed + spent, 0
    for place in ranked(scores[kept[1:]]):
        chance, price = scores[kept[1 + place]], price_at(budget.price, count)
        if chance * cost < price * emitted:
            break
        emitted, cost, count = emitted + chance, cost + price, count + 1
    return kept[places_of_best(scores[kept], count + 1)]


@kernel(borrows=True)
def _grow(at: int, budget: DraftBudget, left: Rounds) -> int:
    """Add the likeliest candidates, until the draft model is to be run on some; how many rows it is asked for by now.
    While it is to run again nothing below its nodes is looked at."""
    buffers = read_buffers(at)
    counts, waiting = buffers.counts, buffers.room.waiting
    most_depth = left.most_depth if buffers.room.rows[0] != NO_ROW else _NOWHERE
    while True:
        num_waiting, before = _add_likeliest(at, budget, most_depth, waiting), counts[NUM_ASKED]
        _choose(at, budget, waiting[:num_waiting], Rounds(left.most_rows, int(most_depth)))
        if counts[NUM_ASKED] > before or num_waiting == 0:
            return int(counts[NUM_ASKED])
        most_depth = _NOWHERE


@kernel(borrows=True)
def _add_likeliest(at: int, budget: DraftBudget, most_depth: int, waiting: IntArray) -> int:
    """Take candidates while they are worth it; how many wait, unoffered, since the draft model might be run on them.
    most_depth: of a node that it may be run on."""
    buffers = read_buffers(at)
    room, counts = buffers.room, buffers.counts
    nodes, heap = room.nodes, room.heap
    num_waiting = 0
    least = _least_score(nodes.scores, counts[NUM_NODES], budget.max_nodes, 0.0)
    while heap[0] > 0 and counts[NUM_NODES] < len(nodes.tokens):
        node = counts[NUM_NODES]
        if peek(heap) < price_at(budget.price, node - 1) or peek(heap) <= least:
            break
        chance, parent, rank = pop(heap)
        _put(buffers, node, parent, rank, chance)
        _offer(buffers, budget, parent, rank + 1)
        if nodes.depths[node] < budget.max_depth:
            room.rows[node] = _row_ahead(buffers, node)
            open_node(at, node)
            if room.rows[node] == NO_ROW and room.rows[parent] != NO_ROW and nodes.depths[node] <= most_depth:
                waiting[num_waiting] = node
                num_waiting += 1
            else:
                _offer(buffers, budget, node, _BEST)
        counts[NUM_NODES] += 1
        least = _least_score(nodes.scores, counts[NUM_NODES], budget.max_nodes, least)
    return num_waiting


@kernel(forceinline=True, borrows=True)
def _row_ahead(buffers: TreeBuffers, node: int) -> int:
    """The row that ran a node before it was there, if one did; of a block that of its depth."""
    run, nodes = buffers.room.run, buffers.room.nodes
    parent, depth = buffers.room.rows[nodes.parents[node]], nodes.depths[node]
    if buffers.sides.is_block:
        return int(depth - 1) if depth < buffers.counts[NUM_SAID] else NO_ROW
    for row in range(buffers.counts[NUM_SAID] - 1):
        if run.parents[row] == parent and run.tokens[row] == nodes.tokens[node]:
            return row
    return NO_ROW


@kernel
def _choose(at: int, budget: DraftBudget, waiting: IntArray, left: Rounds) -> None:
    """Ask for a round of the draft model on those of the waiting nodes where that is worth it; the others are offered
    as they are.

    A round must promise its price in what the model knows beyond the stores. Rows are few: of the likeliest node's
    child, grandchild and so on each is `hit_rate` times as likely as the one before, and a node that is less likely
    than so many of them as there are rows left is passed over.
    """
    buffers = read_buffers(at)
    scores, counts, before = buffers.room.nodes.scores, buffers.counts, buffers.counts[NUM_ASKED]
    hit_rate, order = np.float64(buffers.levels.request.hit_rate[0]), ranked(scores[waiting])
    promise, count = 0.0, 0
    while count < len(order):
        node, num_left = waiting[order[count]], left.most_rows - (counts[NUM_ASKED] - before)
        fallen = math.log(scores[node] / scores[waiting[order[0]]]) / math.log(hit_rate)
        if 1 + fallen > num_left or scores[node] < budget.row_price:
            break
        promise += _ask(at, budget, np.int64(node), Rounds(num_left, left.most_depth))
        count += 1
    if promise < budget.round_price:
        counts[NUM_ASKED], count = before, 0
    for node in waiting[order[count:]]:
        buffers.room.rows[node] = NO_ROW
        _offer(buffers, budget, np.int64(node), _BEST)


@kernel(borrows=True)
def _ask(at: int, budget: DraftBudget, node: int, left: Rounds) -> float:
    """Ask for a row on a node, and in the same round on what the stores go on with, while the tree is likely to come
    there; what the draft model promises there beyond the stores and the price of its rows, in tokens.

    Where the stores are right it bears them out, and their chain is as good as sure; where they are wrong it finds the
    token once in so many times, and their chain goes on from there.
    """
    buffers = read_buffers(at)
    room, nodes, rescue_rate = buffers.room, buffers.room.nodes, np.float64(buffers.levels.request.rescue_rate[0])
    likely, score, promise = 1.0, np.float64(nodes.scores[node]), 0.0
    ahead = np.int64(buffers.counts[NUM_NODES])  # behind the tree's own
    for _ in range((left.most_rows + 1) // 2):  # the others are for what the tree comes to
        _add_row(buffers, node)
        known = _best_chance(buffers, node)
        told = known * chain_gain(score, known, budget.price)
        told += (1.0 - known) * chain_gain(score * rescue_rate, known, budget.price)
        promise += told - chain_gain(score * known, known, budget.price) - budget.row_price
        likely, score = likely * known, score * known
        is_worth_it = likely >= _LIKELY and likely * budget.round_price > budget.row_price
        if not (buffers.sides.runs_ahead and is_worth_it):
            break
        if nodes.depths[node] >= min(left.most_depth, budget.max_depth - 1) or ahead == len(nodes.tokens):
            break
        put_node(nodes, ahead, node, room.candidates.known[node], 0, score)
        room.rows[ahead] = NO_ROW
        open_node(at, ahead)
        node, ahead = int(ahead), ahead + 1
    return promise


@kernel(forceinline=True, borrows=True)
def _add_row(buffers: TreeBuffers, node: int) -> None:
    """Ask for one more row, on a node."""
    nodes, run, rows, row = buffers.room.nodes, buffers.room.run, buffers.room.rows, buffers.counts[NUM_ASKED]
    run.tokens[row], run.parents[row], rows[node] = nodes.tokens[node], rows[nodes.parents[node]], row
    buffers.counts[NUM_ASKED] += 1


@kernel(forceinline=True, borrows=True)
def _best_chance(buffers: TreeBuffers, node: int) -> float:
    candidates = buffers.room.candidates
    return float(candidates.chances[node, candidates.order[node, 0]]) if candidates.sizes[node] > 0 else 0.0


@kernel(borrows=True)
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


@kernel(forceinline=True, borrows=True)
def _offer(buffers: TreeBuffers, budget: DraftBudget, node: int, rank: int) -> None:
    """Put a node's candidate of this rank among those that may join the tree."""
    candidates, nodes = buffers.room.candidates, buffers.room.nodes
    if rank < candidates.sizes[node] and nodes.depths[node] < budget.max_depth:
        chance = nodes.scores[node] * candidates.chances[node, candidates.order[node, rank]]
        if chance >= price_at(budget.price, 0):
            push(buffers.room.heap, chance, node, rank)


@kernel(forceinline=True, borrows=True)
def _put(buffers: TreeBuffers, node: int, parent: int, rank: int, chance: float) -> None:
    """Make a candidate of `parent` node number `node`, of the source that speaks most for it."""
    candidates, nodes, stretch = buffers.room.candidates, buffers.room.nodes, buffers.levels.request.stretch
    slot = candidates.order[parent, rank]
    best, classes, naming = 0, candidates.classes[parent, slot], 0
    for source in range(1, NUM_SOURCES):
        if is_named(classes[source]):
            naming |= 1 << source
            if best == 0 or stretch[classes[source]] > stretch[classes[best]]:
                best = source
    if is_forced(classes[PREDICTION]):
        naming ^= _PREDICTION_OR_GRAMMAR
        best = GRAMMAR if best == PREDICTION else best
    put_node(nodes, node, parent, candidates.ids[parent, slot], best, chance)
    nodes.names[node] = naming
    candidates.sizes[node] = -1
    buffers.room.rows[node] = NO_ROW
