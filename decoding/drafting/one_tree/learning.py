"""Learning from what came: every source is judged on every token, and the stores are taught what followed.

Owns nothing. Knows the desk as it was when the tree grew, and of a step without a tree no more than the text.
"""

from __future__ import annotations

from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.core.tree import IntArray
from decoding.drafting.harvest import harvest_text, harvest_tree
from decoding.drafting.one_tree.desk import NUM_KNOWN, Desk, read_desk
from decoding.drafting.one_tree.grower import NO_ROW, plant
from decoding.drafting.one_tree.opening import NOT_RUN, open_node
from decoding.drafting.tree.nodes import put_node
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.judge import learn_hope, learn_token, set_of

_LIKELY = 2  # candidates of a node


class Verified(NamedTuple):
    """A tree after its step. tokens, parents: int32 [n]; path: int32 [a + 1], of its accepted nodes; came: int32
    [a + 1], the token that came after each; ids, probabilities: [n, k], the target's likeliest tokens after each node,
    or no rows."""

    tokens: IntArray
    parents: IntArray
    path: IntArray
    came: IntArray
    ids: IntArray
    probabilities: NDArray[np.float32]


@nb.njit(cache=True)
def learn_tree(at: int, verified: Verified, path: IntArray) -> None:
    """A tree that grew here was verified; path: int32 [a + 1], the accepted nodes as they grew."""
    _judge(at, path, verified.came)
    if len(verified.ids) > 0:
        desk = read_desk(at)
        tokens = desk.tokens[: desk.counts[NUM_KNOWN]]
        laws = verified.ids, verified.probabilities
        harvest_tree(desk.ngrams, tokens, (verified.tokens, verified.parents), verified.path, laws)


@nb.njit(cache=True)
def learn_text(at: int, first: int, num_tokens: int, num_missed: int) -> None:
    """Text came after the root `first`, up to so many tokens, while no tree was grown, and so many rows with it."""
    plant(at, first + 1)
    desk = read_desk(at)
    desk.foreseen.sizes[:] = 0  # nobody asked then
    came, missed, room = desk.tokens[first + 1 : num_tokens], desk.missed, desk.room
    for node in range(1, len(came)):
        put_node(room.buffers.nodes, node, node - 1, came[node - 1], 0, 1.0)
        room.heard.sizes[node] = -1
        room.rows[node] = NO_ROW
    _judge(at, np.arange(len(came)).astype(np.int32), came)
    laws = missed.ids[:num_missed], missed.probabilities[:num_missed]
    harvest_text(desk.ngrams, desk.tokens, missed.roots[:num_missed], laws)


@nb.njit(cache=True)
def _judge(at: int, path: IntArray, came: IntArray) -> None:
    """Show the sources what came: token came[i] after node path[i]."""
    desk = read_desk(at)
    heard, levels = desk.room.heard, desk.levels
    for step in range(len(path)):
        node, token = np.int64(path[step]), came[step]
        if desk.room.rows[node] != NO_ROW:
            was_likely = _is_likely(desk, node, token)
            learn_hope(levels.request, was_likely)
            learn_hope(levels.session, was_likely)
            learn_hope(levels.server, was_likely)
        if heard.sizes[node] < 0:
            open_node(at, node, desk.no_top, NOT_RUN)
        for source in range(1, NUM_SOURCES):
            desk.foretold[source] += heard.firsts[node, source] == token
        for slot in range(heard.sizes[node]):
            classes = heard.classes[node, slot]
            is_it, speaking = heard.ids[node, slot] == token, set_of(classes)
            learn_token(levels.request, speaking, classes, is_it)
            learn_token(levels.session, speaking, classes, is_it)
            learn_token(levels.server, speaking, classes, is_it)


@nb.njit(cache=True, forceinline=True)
def _is_likely(desk: Desk, node: int, token: int) -> bool:
    """Whether a token is among the likeliest candidates of a node."""
    heard, found = desk.room.heard, False
    for rank in range(min(heard.sizes[node], _LIKELY)):
        found = found or heard.ids[node, heard.order[node, rank]] == token
    return found
