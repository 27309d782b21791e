"""Opening a node: every source is asked what may follow it, and what they say of a token is weighed together.

Owns the look-ups and the order of a node's candidates. Knows nothing of how a tree grows. With temperature, what is
weighed is the coupled draw: the request's own noise at the position counts.
Invariant: the candidates' chances are in falling order and sum to at most one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray
from decoding.drafting.one_tree.buffers import (
    FOUND,
    IS_AGREED,
    IS_REPLY,
    MOST_FORESEEN,
    NO_ROW,
    NUM_KNOWN,
    NUM_SHARED,
    Candidates,
    TreeBuffers,
    read_buffers,
)
from decoding.drafting.tree.candidates import DraftLaw, Expected, temper
from decoding.kernels.cpu.sampling.noise import exponential
from decoding.kernels.numba_kernel import kernel
from decoding.stores.acceptance_model import chance_of, stances_of
from decoding.stores.context import BY_OCCURRENCES, find_match
from decoding.stores.evidence import (
    ADJACENCY,
    CONTEXT,
    MODEL,
    NGRAM,
    NUM_DEPTHS,
    NUM_SOURCES,
    PREDICTION,
    SILENT,
    copied_class,
    foreseen_class,
    listed_classes,
    other_copied_class,
    other_foreseen_class,
    weight_step,
)
from decoding.stores.ngram import LONGEST_NGRAM, find_longest, find_successors, path_context
from decoding.stores.successor_table import NO_TOKEN
from decoding.stores.suffixes import find_longest as find_longest_reply
from decoding.stores.suffixes import next_position, place_of

_EVERY_CHAIN = (1 << MOST_FORESEEN) - 1
_NUM_SEEN = 4
_SHORTEST = LONGEST_NGRAM - 1


@kernel(borrows=True)
def open_node(at: int, node: np.int64) -> None:
    """Ask what may follow a node; at: of the buffers.

    Here and below integers are of one width and no constants, since numba compiles a function for each kind.
    """
    buffers = read_buffers(at)
    candidates, nodes, sides = buffers.room.candidates, buffers.room.nodes, buffers.sides
    candidates.sizes[node] = 0
    candidates.firsts[node] = NO_TOKEN
    others = buffers.scratch.others
    for source in range(NUM_SOURCES):
        others[source] = SILENT
    tokens = buffers.tokens[: buffers.counts[NUM_KNOWN]]
    position = np.int64(len(tokens) + nodes.depths[node])
    _add_foreseen(buffers, node, position, others)
    if sides.uses_context:
        _add_context(buffers, node, position, others)
    context = buffers.scratch.context
    path_context(tokens, nodes.tokens, nodes.parents, node, context)
    if sides.uses_long:
        entry, ngram = find_longest(buffers.stores.ngrams, context, _SHORTEST)
        if entry >= 0:
            seen = min(buffers.stores.ngrams.seen[entry], _NUM_SEEN - 1)
            kind = (ngram - _SHORTEST) * _NUM_SEEN + seen
            _add_list(at, buffers.stores.ngrams, np.int64(entry), (node, position, NGRAM, np.int64(kind)), others)
    if sides.uses_short:
        entry, tier = find_successors(buffers.stores.ngrams, context[LONGEST_NGRAM - 2], context[LONGEST_NGRAM - 1])
        if entry >= 0:
            _add_list(at, buffers.stores.ngrams, np.int64(entry), (node, position, ADJACENCY, np.int64(tier)), others)
    row = buffers.room.rows[node]
    if row != NO_ROW:
        kind = np.int64(2 * min(nodes.depths[node], NUM_DEPTHS - 1) if sides.is_block else 0)
        _add_list(at, buffers.room.run.top, np.int64(row + 1), (node, position, MODEL, kind), others)
    _weigh(buffers, node, others)
    if row == NO_ROW:
        likeliest = candidates.ids[node, candidates.order[node, 0]]
        candidates.known[node] = likeliest if candidates.sizes[node] > 0 else NO_TOKEN


@kernel(forceinline=True, borrows=True)
def _add_foreseen(buffers: TreeBuffers, node: int, position: int, others: NDArray[np.int16]) -> None:
    """What the request's grammar and prediction go on with, where the path has followed them so far."""
    candidates, nodes, foreseen = buffers.room.candidates, buffers.room.nodes, buffers.foreseen
    depth, parent = nodes.depths[node], nodes.parents[node]
    followed = candidates.follows[parent] if node > 0 else _EVERY_CHAIN
    candidates.follows[node] = 0
    for chain in range(MOST_FORESEEN if followed else 0):
        if not followed >> chain & 1 or depth >= foreseen.sizes[chain]:
            continue
        if node > 0 and foreseen.tokens[chain, depth - 1] != nodes.tokens[node]:
            continue
        candidates.follows[node] |= 1 << chain
        token, reason = foreseen.tokens[chain, depth], foreseen.reasons[chain, depth]
        slot = _slot_of(candidates, buffers.scratch.variates, buffers.law, (node, position, token))
        if candidates.classes[node, slot, PREDICTION] != SILENT:
            continue  # a likelier chain has named it
        candidates.classes[node, slot, PREDICTION] = foreseen_class(reason, buffers.scratch.variates[slot])
        if others[PREDICTION] == SILENT:
            candidates.firsts[node, PREDICTION] = token
            others[PREDICTION] = other_foreseen_class(reason)


@kernel(forceinline=True, borrows=True)
def _add_context(buffers: TreeBuffers, node: int, position: int, others: NDArray[np.int16]) -> None:
    """What followed where the end of the path stood before, in the text or in the session's replies."""
    candidates, tokens = buffers.room.candidates, buffers.tokens[: buffers.counts[NUM_KNOWN]]
    match = candidates.matches[node]
    if not _copy_goes_on(buffers, node, tokens):
        _find_copy(buffers, node, tokens)
    after, token = _next(buffers, tokens, match[FOUND], match[IS_REPLY]) if match[FOUND] >= 0 else (-1, NO_TOKEN)
    if after >= 0:
        slot = _slot_of(candidates, buffers.scratch.variates, buffers.law, (node, position, token))
        is_reply, is_agreed, variate = match[IS_REPLY] == 1, match[IS_AGREED] == 1, buffers.scratch.variates[slot]
        candidates.classes[node, slot, CONTEXT] = copied_class(match[NUM_SHARED], is_reply, is_agreed, variate)
        candidates.firsts[node, CONTEXT] = token
        others[CONTEXT] = other_copied_class(match[NUM_SHARED])


@kernel(forceinline=True, borrows=True)
def _copy_goes_on(buffers: TreeBuffers, node: int, tokens: IntArray) -> bool:
    """Whether the node is what its parent's match went on with, and that goes on; its own match is the next place."""
    candidates, nodes = buffers.room.candidates, buffers.room.nodes
    match, before = candidates.matches[node], candidates.matches[nodes.parents[node]]
    if node == 0 or before[FOUND] < 0:
        return False
    copied, token = _next(buffers, tokens, before[FOUND], before[IS_REPLY])
    if token != nodes.tokens[node] or _next(buffers, tokens, copied, before[IS_REPLY])[0] < 0:
        return False
    match[FOUND], match[NUM_SHARED] = copied, before[NUM_SHARED] + 1
    match[IS_AGREED], match[IS_REPLY] = before[IS_AGREED], before[IS_REPLY]
    return True


@kernel(forceinline=True, borrows=True)
def _find_copy(buffers: TreeBuffers, node: int, tokens: IntArray) -> None:
    """Look the path up, in the session's replies only for what shares more tokens than the text."""
    nodes, match, path = buffers.room.nodes, buffers.room.candidates.matches[node], buffers.scratch.path
    path_context(tokens, nodes.tokens, nodes.parents, node, path)
    query = path[len(path) - min(len(path), len(tokens) + nodes.depths[node]) :]
    found, num_shared, consensus = find_match(buffers.stores.context, tokens, query)
    is_agreed, is_reply = (consensus & BY_OCCURRENCES) != 0, False
    in_replies, num_shared_there = find_longest_reply(buffers.stores.replies, query)
    if num_shared_there > num_shared:
        is_agreed = found >= 0 and _next(buffers, tokens, found, 0)[1] == _next(buffers, tokens, in_replies, 1)[1]
        found, num_shared, is_reply = in_replies, num_shared_there, True
    match[FOUND], match[NUM_SHARED], match[IS_AGREED], match[IS_REPLY] = found, num_shared, is_agreed, is_reply


@kernel(forceinline=True, borrows=True)
def _next(buffers: TreeBuffers, tokens: IntArray, position: int, is_reply: int) -> tuple[int, int]:
    """The position after one in the text or in the session's replies, and its token; -1 for none."""
    if is_reply:
        replies = buffers.stores.replies
        after = next_position(replies, position)
        return (after, replies.tokens[place_of(replies, after)]) if after >= 0 else (-1, NO_TOKEN)
    is_token = position + 1 < len(tokens) and tokens[position + 1] >= 0
    return (position + 1, tokens[position + 1]) if is_token else (-1, NO_TOKEN)


@kernel(borrows=True)
def _add_list(
    at: int, table: Expected, entry: int, place: tuple[int, int, int, int], others: NDArray[np.int16]
) -> None:
    """What a list of expected tokens names. place: (node, position, source, kind of list)."""
    buffers = read_buffers(at)
    node, position, source, kind = place
    law, candidates, scratch = buffers.law, buffers.room.candidates, buffers.scratch
    shares, weights, places, variates = scratch.shares, scratch.weights, scratch.places, scratch.variates
    size = temper(table, entry, law, shares, 0)
    is_sampled = law.temperature > 0
    whole, best, count = 0.0, 0, 0
    for slot in range(size):
        token = table.ids[entry, slot]
        if source == MODEL and token >= buffers.sides.vocab_size:
            continue
        found = _slot_of(candidates, buffers.scratch.variates, buffers.law, (node, position, token))
        weight = shares[0, slot] / variates[found] if is_sampled else np.float64(table.probabilities[entry, slot])
        whole += weight
        places[count], weights[count] = found, weight
        if weight > weights[best]:
            best = count
        count += 1
    if count == 0:
        return
    scale = 1.0 / whole if is_sampled else 1.0
    named, unnamed = listed_classes(source, kind)
    second = listed_classes(MODEL, kind + 1)[0] if source == MODEL else named
    _write_classes(candidates.classes, node, source, (places, weights, count, scale), (named, second, best))
    candidates.firsts[node, source] = candidates.ids[node, places[best]]
    others[source] = unnamed + weight_step(weights[best] * scale)


@kernel(borrows=True)
def _write_classes(
    classes: NDArray[np.int16],
    node: int,
    source: int,
    listed: tuple[IntArray, NDArray[np.float64], int, float],
    first: tuple[int, int, int],
) -> None:
    """The class of each listed token. listed: (places, weights, how many, scale); first: where the classes begin of the
    best and of the others, and which is the best."""
    places, weights, count, scale = listed
    named, second, best = first
    for index in range(count):
        begin = named if index == best else second
        classes[node, places[index], source] = begin + weight_step(weights[index] * scale)


@kernel(forceinline=True, borrows=True)
def _slot_of(candidates: Candidates, variates: NDArray[np.float64], law: DraftLaw, named: tuple[int, int, int]) -> int:
    """A token's place among the node's candidates, where it may be new; with temperature its variate is there too.
    named: (node, position, token)."""
    node, position, token = named
    ids, classes, size = candidates.ids, candidates.classes, candidates.sizes[node]
    for slot in range(size):
        if ids[node, slot] == token:
            return slot
    ids[node, size] = token
    for source in range(NUM_SOURCES):
        classes[node, size, source] = SILENT
    variates[size] = exponential(law.seed, position, token) if law.temperature > 0 else 0.0
    candidates.sizes[node] = size + 1
    return int(size)


@kernel(forceinline=True, borrows=True)
def _weigh(buffers: TreeBuffers, node: int, others: NDArray[np.int16]) -> None:
    """Give each candidate its chance, and put the likeliest first."""
    candidates, model = buffers.room.candidates, buffers.levels.request
    size = candidates.sizes[node]
    for slot in range(size):
        classes = candidates.classes[node, slot]
        for source in range(1, NUM_SOURCES):
            if classes[source] == SILENT:
                classes[source] = others[source]
        chance = chance_of(model, stances_of(classes), classes)
        candidates.chances[node, slot] = chance
        place = slot
        while place > 0 and candidates.chances[node, candidates.order[node, place - 1]] < chance:
            candidates.order[node, place] = candidates.order[node, place - 1]
            place -= 1
        candidates.order[node, place] = slot
    left = 1.0
    for rank in range(size):  # the likelier ones leave the others what is left
        slot = candidates.order[node, rank]
        candidates.chances[node, slot] = min(candidates.chances[node, slot], left)
        left -= candidates.chances[node, slot]
