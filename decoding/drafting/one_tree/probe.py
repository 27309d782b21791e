"""Asking the stores what comes next, and learning from what came: every source is held against every token.

Owns nothing. Reads the buffers as they were when the tree grew; of a step without a tree its root, and the text.
"""

from __future__ import annotations

import numpy as np

from decoding.core.tree import IntArray
from decoding.drafting.one_tree.buffers import IS_UNLEARNED, LAST_KEPT, NO_ROW, NUM_KEPT, NUM_KNOWN, read_buffers
from decoding.drafting.one_tree.grower import plant
from decoding.drafting.one_tree.opening import open_node
from decoding.kernels.numba_kernel import kernel
from decoding.stores.acceptance_model import learn_hit, learn_probe, learn_token, stances_of
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.suffixes import append_all

_LIKELY = 2  # candidates of a node
_ROOT = np.int64(0)


@kernel(borrows=True)
def probe(at: int, num_known: int) -> float:
    """Learn from the text so far, plant a tree at its last token and ask the stores what follows: how likely the
    likeliest next token is."""
    learn_text(at, num_known)
    plant(at, num_known)
    buffers = read_buffers(at)
    open_node(at, _ROOT)
    buffers.counts[IS_UNLEARNED] = 1
    candidates = buffers.room.candidates
    return float(candidates.chances[0, candidates.order[0, 0]]) if candidates.sizes[0] > 0 else 0.0


@kernel(borrows=True)
def learn_text(at: int, num_known: int) -> None:
    """The text has so many tokens now: learn from what was said of the one after the last root, if no tree was verified
    there, and keep what is new among the session's replies."""
    buffers = read_buffers(at)
    counts = buffers.counts
    root = counts[NUM_KNOWN]
    if counts[IS_UNLEARNED] and root < num_known:
        counts[IS_UNLEARNED] = 0
        _learn(at, buffers.scratch.root, buffers.tokens[root : root + 1])
        learn_probe(buffers.levels, buffers.room.rows[0] != NO_ROW)
    if counts[NUM_KEPT] < num_known and buffers.sides.uses_context:
        fresh = buffers.tokens[counts[NUM_KEPT] : num_known]
        counts[LAST_KEPT] = append_all(buffers.stores.replies, fresh, counts[LAST_KEPT])
        counts[NUM_KEPT] = num_known


@kernel(borrows=True)
def learn_tree(at: int, path: IntArray, came: IntArray) -> None:
    """A tree that grew here was verified. path: int32 [a + 1], the nodes that were accepted, as they grew; came:
    int32 [a + 1], the token that came after each."""
    buffers = read_buffers(at)
    buffers.counts[IS_UNLEARNED] = 0
    _learn(at, path, came)
    learn_probe(buffers.levels, buffers.room.rows[0] != NO_ROW)


@kernel(borrows=True)
def _learn(at: int, path: IntArray, came: IntArray) -> None:
    """Show the sources what came: token came[i] after node path[i]."""
    buffers = read_buffers(at)
    candidates, levels = buffers.room.candidates, buffers.levels
    for step in range(len(path)):
        node, token = np.int64(path[step]), came[step]
        if buffers.room.rows[node] != NO_ROW:
            was_likely = False
            for rank in range(min(candidates.sizes[node], _LIKELY)):
                was_likely = was_likely or candidates.ids[node, candidates.order[node, rank]] == token
            was_known = candidates.known[node] == token
            learn_hit(levels.request, was_likely, was_known)
            learn_hit(levels.session, was_likely, was_known)
            learn_hit(levels.server, was_likely, was_known)
        if candidates.sizes[node] < 0:
            open_node(at, node)
        for source in range(1, NUM_SOURCES):
            buffers.predicted[source] += candidates.firsts[node, source] == token
        for slot in range(candidates.sizes[node]):
            classes = candidates.classes[node, slot]
            is_it, stances = candidates.ids[node, slot] == token, stances_of(classes)
            learn_token(levels.request, stances, classes, is_it)
            learn_token(levels.session, stances, classes, is_it)
            learn_token(levels.server, stances, classes, is_it)
