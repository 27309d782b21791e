"""Opening a node: every source is asked what may follow it, and what they say of a token is weighed together.

Owns the look-ups and the order of a node's candidates. Knows nothing of how a tree grows. With temperature, what is
weighed is the coupled draw: the request's own noise at the position counts.
Invariant: the candidates' chances are in falling order and sum to at most one.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray
from decoding.drafting.draft_model.growth import Top
from decoding.drafting.harvest import path_context
from decoding.drafting.tree.candidates import DraftLaw, Expected, temper
from decoding.drafting.tree.growth import Growth
from decoding.sampling.noise import exponential
from decoding.stores.context import BY_OCCURRENCES, MAX_SUFFIX, ContextArrays, find_match
from decoding.stores.evidence import (
    ADJACENCY,
    CONTEXT,
    MODEL,
    NGRAM,
    NUM_SOURCES,
    SILENT,
    copied_class,
    listed_classes,
    other_copied_class,
    weight_step,
)
from decoding.stores.judge import Judge, chance_of, set_of
from decoding.stores.ngram import LONGEST_NGRAM, find_longest, find_successors
from decoding.stores.successor_table import NO_TOKEN, NUM_SUCCESSORS, SuccessorArrays

MOST_CANDIDATES = 1 + 3 * NUM_SUCCESSORS
NOT_RUN = np.int64(-1)  # in place of a row of the draft model's
_NUM_SEEN = 4
_SHORTEST = LONGEST_NGRAM - 1


class Heard(NamedTuple):
    """What may follow each of n nodes. ids: int32 [n, C]; classes: int16 [n, C, 1 + S], what each source says of them;
    chances: float32 [n, C], given the node; order: int8 [n, C], the likeliest first; sizes: int32 [n], how many there
    are, -1 before a node is opened; firsts: int32 [n, 1 + S], what each source thinks likeliest, -1 for nothing;
    matches: int32 [n, 3], of the context: position (-1: none), tokens shared, consensus."""

    ids: IntArray
    classes: NDArray[np.int16]
    chances: NDArray[np.float32]
    order: NDArray[np.int8]
    sizes: IntArray
    firsts: IntArray
    matches: IntArray


class Scratch(NamedTuple):
    """Room for one node. shares: float64 [1, 10]; weights: float64 [10]; places: int32 [10]; variates: float64 [C];
    path: int32 [32]; context: int32 [4]."""

    shares: NDArray[np.float64]
    weights: NDArray[np.float64]
    places: IntArray
    variates: NDArray[np.float64]
    path: IntArray
    context: IntArray


class Asked(NamedTuple):
    """Who is asked, and by what. vocab_size: of the tokens that the draft model shares with the target; no_top: what it
    says of no row; uses_*: whether the context, n-grams of one or two tokens, and of three or four take part."""

    context: ContextArrays
    ngrams: SuccessorArrays
    vocab_size: int
    law: DraftLaw
    judge: Judge
    heard: Heard
    scratch: Scratch
    no_top: Top
    uses_context: bool
    uses_short: bool
    uses_long: bool


def allocate_heard(num_nodes: int) -> Heard:
    return Heard(
        ids=np.zeros((num_nodes, MOST_CANDIDATES), np.int32),
        classes=np.zeros((num_nodes, MOST_CANDIDATES, NUM_SOURCES), np.int16),
        chances=np.zeros((num_nodes, MOST_CANDIDATES), np.float32),
        order=np.zeros((num_nodes, MOST_CANDIDATES), np.int8),
        sizes=np.full(num_nodes, -1, np.int32),
        firsts=np.full((num_nodes, NUM_SOURCES), NO_TOKEN, np.int32),
        matches=np.full((num_nodes, 3), -1, np.int32),
    )


def allocate_scratch() -> Scratch:
    return Scratch(
        np.zeros((1, NUM_SUCCESSORS)),
        np.zeros(NUM_SUCCESSORS),
        np.zeros(NUM_SUCCESSORS, np.int32),
        np.zeros(MOST_CANDIDATES),
        np.zeros(MAX_SUFFIX, np.int32),
        np.zeros(LONGEST_NGRAM, np.int32),
    )


@nb.njit(cache=True)
def open_node(growth: Growth, asked: Asked, node: np.int64, top: Top, row: np.int64) -> None:
    """Ask what may follow a node; row: of `top`, `NOT_RUN` where the draft model was not run on it.

    Here and below integers are of one width and no constants, since numba compiles a function for each kind.
    """
    heard, nodes = asked.heard, growth.nodes
    heard.sizes[node] = 0
    heard.firsts[node] = NO_TOKEN
    others = np.full(NUM_SOURCES, SILENT, np.int16)  # what each source says of tokens it does not name
    position = np.int64(len(growth.tokens) + nodes.depths[node])
    if asked.uses_context:
        _hear_context(growth, asked, node, position, others)
    path_context(growth.tokens, nodes.tokens, nodes.parents, node, asked.scratch.context)
    if asked.uses_long:
        entry, ngram = find_longest(asked.ngrams, asked.scratch.context, _SHORTEST)
        if entry >= 0:
            seen = min(asked.ngrams.seen[entry], _NUM_SEEN - 1)
            kind = (ngram - _SHORTEST) * _NUM_SEEN + seen
            _hear_list(asked, asked.ngrams, np.int64(entry), (node, position, NGRAM, np.int64(kind)), others)
    if asked.uses_short:
        before, token = asked.scratch.context[LONGEST_NGRAM - 2], asked.scratch.context[LONGEST_NGRAM - 1]
        entry, tier = find_successors(asked.ngrams, before, token)
        if entry >= 0:
            _hear_list(asked, asked.ngrams, np.int64(entry), (node, position, ADJACENCY, np.int64(tier)), others)
    if row >= 0:
        _hear_list(asked, top, row, (node, position, MODEL, np.int64(0)), others)
    _weigh(asked, node, others)


@nb.njit(cache=True)
def _hear_context(growth: Growth, asked: Asked, node: int, position: int, others: NDArray[np.int16]) -> None:
    """What followed where the end of the path stood before: a copy goes on, or the path is looked up."""
    heard, nodes, match = asked.heard, growth.nodes, asked.heard.matches[node]
    parent = nodes.parents[node]
    match[0] = -1
    if node > 0 and heard.matches[parent, 0] >= 0:
        copied = heard.matches[parent, 0] + 1
        if copied + 1 < len(growth.tokens) and growth.tokens[copied] == nodes.tokens[node]:
            match[0], match[1], match[2] = copied, heard.matches[parent, 1] + 1, heard.matches[parent, 2]
    if match[0] < 0:
        path = asked.scratch.path
        path_context(growth.tokens, nodes.tokens, nodes.parents, node, path)
        known = min(len(path), len(growth.tokens) + nodes.depths[node])
        found, suffix_len, _, consensus = find_match(asked.context, growth.tokens, path[len(path) - known :])
        match[0], match[1], match[2] = found, suffix_len, (consensus & BY_OCCURRENCES) != 0
    if match[0] < 0:
        return
    token = growth.tokens[match[0] + 1]
    slot = -1 - _slot_of(heard.ids, heard.classes, heard.sizes, node, token)  # it is the first to be named
    variate = exponential(asked.law.seed, position, token) if asked.law.temperature > 0 else 0.0
    asked.scratch.variates[slot] = variate
    heard.classes[node, slot, CONTEXT] = copied_class(match[1], match[2] == 1, variate)
    heard.firsts[node, CONTEXT] = token
    others[CONTEXT] = other_copied_class(match[1])


@nb.njit(cache=True)
def _hear_list(
    asked: Asked, table: Expected, entry: int, place: tuple[int, int, int, int], others: NDArray[np.int16]
) -> None:
    """What a list of expected tokens names. place: (node, position, source, kind of list)."""
    node, position, source, kind = place
    law, heard = asked.law, asked.heard
    shares, weights, places, variates = (
        asked.scratch.shares,
        asked.scratch.weights,
        asked.scratch.places,
        asked.scratch.variates,
    )
    size = temper(table, entry, law, shares, 0)
    is_sampled = law.temperature > 0
    whole, best, count = 0.0, 0, 0
    for slot in range(size):
        token = table.ids[entry, slot]
        if source == MODEL and token >= asked.vocab_size:
            continue
        found = _slot_of(heard.ids, heard.classes, heard.sizes, node, token)
        if found < 0:
            found = -1 - found
            if is_sampled:
                variates[found] = exponential(law.seed, position, token)
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


@nb.njit(cache=True)
def _slot_of(ids: IntArray, classes: NDArray[np.int16], sizes: IntArray, node: int, token: int) -> int:
    """A token's place among the node's candidates; -1 less the place where it is new."""
    size = sizes[node]
    for slot in range(size):
        if ids[node, slot] == token:
            return slot
    ids[node, size] = token
    for source in range(NUM_SOURCES):
        classes[node, size, source] = SILENT
    sizes[node] = size + 1
    return int(-1 - size)


@nb.njit(cache=True)
def _weigh(asked: Asked, node: int, others: NDArray[np.int16]) -> None:
    """Give each candidate its chance, and put the likeliest first."""
    heard, size = asked.heard, asked.heard.sizes[node]
    speaking = set_of(others)
    for slot in range(size):
        classes = heard.classes[node, slot]
        for source in range(1, NUM_SOURCES):
            if classes[source] == SILENT:
                classes[source] = others[source]
        chance = chance_of(asked.judge, speaking, classes)
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
