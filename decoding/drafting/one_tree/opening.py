"""Opening a node: every source is asked what may follow it, and what they say of a token is weighed together.

Owns the look-ups and the order of a node's candidates. Knows nothing of how a tree grows. With temperature, what is
weighed is the coupled draw: the request's own noise at the position counts.
Invariant: the candidates' chances are in falling order and sum to at most one.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray
from decoding.drafting.harvest import path_context
from decoding.drafting.one_tree.desk import (
    FOUND,
    IS_AGREED,
    IS_REPLY,
    MOST_FORESEEN,
    NO_ROW,
    NUM_KNOWN,
    NUM_SHARED,
    Desk,
    Heard,
    read_desk,
)
from decoding.drafting.tree.candidates import DraftLaw, Expected, temper
from decoding.sampling.noise import exponential
from decoding.stores.context import BY_OCCURRENCES, find_match
from decoding.stores.evidence import (
    ADJACENCY,
    CONTEXT,
    MODEL,
    NGRAM,
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
from decoding.stores.judge import chance_of, stances_of
from decoding.stores.ngram import LONGEST_NGRAM, find_longest, find_successors
from decoding.stores.successor_table import NO_TOKEN
from decoding.stores.suffixes import find_longest as find_longest_reply
from decoding.stores.suffixes import next_position, place_of

_EVERY_CHAIN = (1 << MOST_FORESEEN) - 1
_NUM_SEEN = 4
_SHORTEST = LONGEST_NGRAM - 1


@nb.njit(cache=True)
def open_node(at: int, node: np.int64) -> None:
    """Ask what may follow a node; at: of the desk.

    Here and below integers are of one width and no constants, since numba compiles a function for each kind.
    """
    desk = read_desk(at)
    heard, nodes, sides = desk.room.heard, desk.room.nodes, desk.sides
    heard.sizes[node] = 0
    heard.firsts[node] = NO_TOKEN
    others = np.full(NUM_SOURCES, SILENT, np.int16)  # what each source says of tokens it does not name
    tokens = desk.tokens[: desk.counts[NUM_KNOWN]]
    position = np.int64(len(tokens) + nodes.depths[node])
    _hear_foreseen(desk, node, position, others)
    if sides.uses_context:
        _hear_context(desk, node, position, others)
    context = desk.scratch.context
    path_context(tokens, nodes.tokens, nodes.parents, node, context)
    if sides.uses_long:
        entry, ngram = find_longest(desk.stores.ngrams, context, _SHORTEST)
        if entry >= 0:
            seen = min(desk.stores.ngrams.seen[entry], _NUM_SEEN - 1)
            kind = (ngram - _SHORTEST) * _NUM_SEEN + seen
            _hear_list(at, desk.stores.ngrams, np.int64(entry), (node, position, NGRAM, np.int64(kind)), others)
    if sides.uses_short:
        entry, tier = find_successors(desk.stores.ngrams, context[LONGEST_NGRAM - 2], context[LONGEST_NGRAM - 1])
        if entry >= 0:
            _hear_list(at, desk.stores.ngrams, np.int64(entry), (node, position, ADJACENCY, np.int64(tier)), others)
    row = desk.room.rows[node]
    if row != NO_ROW:
        _hear_list(at, desk.room.run.top, np.int64(row + 1), (node, position, MODEL, np.int64(0)), others)
    _weigh(desk, node, others)
    if row == NO_ROW:
        heard.known[node] = heard.ids[node, heard.order[node, 0]] if heard.sizes[node] > 0 else NO_TOKEN


@nb.njit(cache=True, forceinline=True)
def _hear_foreseen(desk: Desk, node: int, position: int, others: NDArray[np.int16]) -> None:
    """What the request's grammar and prediction go on with, where the path has followed them so far."""
    heard, nodes, foreseen = desk.room.heard, desk.room.nodes, desk.foreseen
    depth, parent = nodes.depths[node], nodes.parents[node]
    followed = heard.follows[parent] if node > 0 else _EVERY_CHAIN
    heard.follows[node] = 0
    for chain in range(MOST_FORESEEN if followed else 0):
        if not followed >> chain & 1 or depth >= foreseen.sizes[chain]:
            continue
        if node > 0 and foreseen.tokens[chain, depth - 1] != nodes.tokens[node]:
            continue
        heard.follows[node] |= 1 << chain
        token, reason = foreseen.tokens[chain, depth], foreseen.reasons[chain, depth]
        slot = _slot_of(heard, desk.scratch.variates, desk.law, (node, position, token))
        if heard.classes[node, slot, PREDICTION] != SILENT:
            continue  # a likelier chain has named it
        heard.classes[node, slot, PREDICTION] = foreseen_class(reason, desk.scratch.variates[slot])
        if others[PREDICTION] == SILENT:
            heard.firsts[node, PREDICTION] = token
            others[PREDICTION] = other_foreseen_class(reason)


@nb.njit(cache=True, forceinline=True)
def _hear_context(desk: Desk, node: int, position: int, others: NDArray[np.int16]) -> None:
    """What followed where the end of the path stood before, in the text or in the session's replies."""
    heard, tokens = desk.room.heard, desk.tokens[: desk.counts[NUM_KNOWN]]
    match = heard.matches[node]
    if not _copy_goes_on(desk, node, tokens):
        _find_copy(desk, node, tokens)
    if match[FOUND] >= 0:
        _, token = _next(desk, tokens, match[FOUND], match[IS_REPLY])
        slot = _slot_of(heard, desk.scratch.variates, desk.law, (node, position, token))
        is_reply, is_agreed, variate = match[IS_REPLY] == 1, match[IS_AGREED] == 1, desk.scratch.variates[slot]
        heard.classes[node, slot, CONTEXT] = copied_class(match[NUM_SHARED], is_reply, is_agreed, variate)
        heard.firsts[node, CONTEXT] = token
        others[CONTEXT] = other_copied_class(match[NUM_SHARED])


@nb.njit(cache=True, forceinline=True)
def _copy_goes_on(desk: Desk, node: int, tokens: IntArray) -> bool:
    """Whether the node is what its parent's match went on with, and that goes on; its own match is the next place."""
    heard, nodes = desk.room.heard, desk.room.nodes
    match, before = heard.matches[node], heard.matches[nodes.parents[node]]
    if node == 0 or before[FOUND] < 0:
        return False
    copied, token = _next(desk, tokens, before[FOUND], before[IS_REPLY])
    if token != nodes.tokens[node] or _next(desk, tokens, copied, before[IS_REPLY])[0] < 0:
        return False
    match[FOUND], match[NUM_SHARED] = copied, before[NUM_SHARED] + 1
    match[IS_AGREED], match[IS_REPLY] = before[IS_AGREED], before[IS_REPLY]
    return True


@nb.njit(cache=True, forceinline=True)
def _find_copy(desk: Desk, node: int, tokens: IntArray) -> None:
    """Look the path up, in the session's replies only for what shares more tokens than the text."""
    nodes, match, path = desk.room.nodes, desk.room.heard.matches[node], desk.scratch.path
    path_context(tokens, nodes.tokens, nodes.parents, node, path)
    query = path[len(path) - min(len(path), len(tokens) + nodes.depths[node]) :]
    found, num_shared, _, consensus = find_match(desk.stores.context, tokens, query)
    is_agreed, is_reply = (consensus & BY_OCCURRENCES) != 0, False
    in_replies, num_shared_there = find_longest_reply(desk.stores.replies, query)
    if num_shared_there > num_shared:
        is_agreed = found >= 0 and _next(desk, tokens, found, 0)[1] == _next(desk, tokens, in_replies, 1)[1]
        found, num_shared, is_reply = in_replies, num_shared_there, True
    match[FOUND], match[NUM_SHARED], match[IS_AGREED], match[IS_REPLY] = found, num_shared, is_agreed, is_reply


@nb.njit(cache=True, forceinline=True)
def _next(desk: Desk, tokens: IntArray, position: int, is_reply: int) -> tuple[int, int]:
    """The position after one in the text or in the session's replies, and its token; -1 for none."""
    if is_reply:
        replies = desk.stores.replies
        after = next_position(replies, position)
        return (after, replies.tokens[place_of(replies, after)]) if after >= 0 else (-1, NO_TOKEN)
    return (position + 1, tokens[position + 1]) if position + 1 < len(tokens) else (-1, NO_TOKEN)


@nb.njit(cache=True)
def _hear_list(
    at: int, table: Expected, entry: int, place: tuple[int, int, int, int], others: NDArray[np.int16]
) -> None:
    """What a list of expected tokens names. place: (node, position, source, kind of list)."""
    desk = read_desk(at)
    node, position, source, kind = place
    law, heard, scratch = desk.law, desk.room.heard, desk.scratch
    shares, weights, places, variates = scratch.shares, scratch.weights, scratch.places, scratch.variates
    size = temper(table, entry, law, shares, 0)
    is_sampled = law.temperature > 0
    whole, best, count = 0.0, 0, 0
    for slot in range(size):
        token = table.ids[entry, slot]
        if source == MODEL and token >= desk.sides.vocab_size:
            continue
        found = _slot_of(heard, desk.scratch.variates, desk.law, (node, position, token))
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
    second = listed_classes(MODEL, 1)[0] if source == MODEL else named
    _write_classes(heard.classes, node, source, (places, weights, count, scale), (named, second, best))
    heard.firsts[node, source] = heard.ids[node, places[best]]
    others[source] = unnamed + weight_step(weights[best] * scale)


@nb.njit(cache=True)
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


@nb.njit(cache=True, forceinline=True)
def _slot_of(heard: Heard, variates: NDArray[np.float64], law: DraftLaw, named: tuple[int, int, int]) -> int:
    """A token's place among the node's candidates, where it may be new; with temperature its variate is there too.
    named: (node, position, token)."""
    node, position, token = named
    ids, classes, size = heard.ids, heard.classes, heard.sizes[node]
    for slot in range(size):
        if ids[node, slot] == token:
            return slot
    ids[node, size] = token
    for source in range(NUM_SOURCES):
        classes[node, size, source] = SILENT
    variates[size] = exponential(law.seed, position, token) if law.temperature > 0 else 0.0
    heard.sizes[node] = size + 1
    return int(size)


@nb.njit(cache=True, forceinline=True)
def _weigh(desk: Desk, node: int, others: NDArray[np.int16]) -> None:
    """Give each candidate its chance, and put the likeliest first."""
    heard, judge = desk.room.heard, desk.levels.request
    size = heard.sizes[node]
    for slot in range(size):
        classes = heard.classes[node, slot]
        for source in range(1, NUM_SOURCES):
            if classes[source] == SILENT:
                classes[source] = others[source]
        chance = chance_of(judge, stances_of(classes), classes)
        heard.chances[node, slot] = chance
        place = slot
        while place > 0 and heard.chances[node, heard.order[node, place - 1]] < chance:
            heard.order[node, place] = heard.order[node, place - 1]
            place -= 1
        heard.order[node, place] = slot
    left = 1.0
    for rank in range(size):  # the likelier ones leave the others what is left
        slot = heard.order[node, rank]
        heard.chances[node, slot] = min(heard.chances[node, slot], left)
        left -= heard.chances[node, slot]
