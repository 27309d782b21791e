"""Learning from what came: every source is judged on every token.

Owns nothing. Knows the desk as it was when the tree grew; of a step without a tree its root, and the text.
"""

from __future__ import annotations

import numba as nb
import numpy as np
from numba.extending import register_jitable

from decoding.core.tree import IntArray
from decoding.costs.price import Stakes, tree_gain
from decoding.drafting.one_tree.desk import IS_UNJUDGED, LAST_KEPT, NO_ROW, NUM_KEPT, NUM_KNOWN, read_desk
from decoding.drafting.one_tree.grower import plant
from decoding.drafting.one_tree.opening import open_node
from decoding.stores.evidence import NUM_SOURCES
from decoding.stores.judge import NUM_STEPS, Judge, kept, learn_chance, learn_look, learn_model, learn_token, stances_of
from decoding.stores.suffixes import append_all

register_jitable(tree_gain)
_LIKELY = 2  # candidates of a node
_ROOT = np.int64(0)


@nb.njit(cache=True)
def look(at: int, num_known: int, stakes: Stakes) -> tuple[float, float]:
    """Learn from the text so far, plant a tree at its last token and ask the stores what follows. How likely the
    likeliest is; what looks like this one earn, in tokens."""
    learn_text(at, num_known)
    plant(at, num_known)
    desk = read_desk(at)
    open_node(at, _ROOT)
    desk.counts[IS_UNJUDGED] = 1
    heard = desk.room.heard
    chance = float(heard.chances[0, heard.order[0, 0]]) if heard.sizes[0] > 0 else 0.0
    learn_chance(desk.levels, chance, max(0.0, tree_gain(chance, stakes)))
    return chance, _worth(desk.levels.request, stakes)


@nb.njit(cache=True, forceinline=True)
def _worth(judge: Judge, stakes: Stakes) -> float:
    """What a look earns, in tokens: by how likely tokens looks have found and what such promise now, as far as they
    have kept it."""
    promised = 0.0
    for step in range(NUM_STEPS - 1, -1, -1):
        gain = tree_gain((step + 0.5) / NUM_STEPS, stakes)
        if gain <= 0:
            break
        promised += judge.seen[step] * gain
    return promised * kept(judge)


@nb.njit(cache=True)
def learn_text(at: int, num_known: int) -> None:
    """The text has so many tokens now: judge what was said of the one after the last root, if no tree was verified
    there, and keep what is new among the session's replies."""
    desk = read_desk(at)
    counts = desk.counts
    root = counts[NUM_KNOWN]
    if counts[IS_UNJUDGED] and root < num_known:
        counts[IS_UNJUDGED] = 0
        _judge(at, np.zeros(1, np.int32), desk.tokens[root : root + 1])
        learn_look(desk.levels, False, desk.room.rows[0] != NO_ROW, 0.0)
    if counts[NUM_KEPT] < num_known and desk.sides.uses_context:
        fresh = desk.tokens[counts[NUM_KEPT] : num_known]
        counts[LAST_KEPT] = append_all(desk.stores.replies, fresh, counts[LAST_KEPT])
        counts[NUM_KEPT] = num_known


@nb.njit(cache=True)
def learn_tree(at: int, verified: IntArray, path: IntArray, came: IntArray, earned: float) -> None:
    """A tree that grew here was verified. verified: int32 [n], its nodes as they grew; path: int32 [a + 1], those of
    them that were accepted; came: int32 [a + 1], the token that came after each; earned: tokens beyond its price."""
    desk = read_desk(at)
    desk.counts[IS_UNJUDGED] = 0
    _judge(at, verified[path], came)
    learn_look(desk.levels, len(verified) > 1, desk.room.rows[0] != NO_ROW, earned)


@nb.njit(cache=True)
def _judge(at: int, path: IntArray, came: IntArray) -> None:
    """Show the sources what came: token came[i] after node path[i]."""
    desk = read_desk(at)
    heard, levels = desk.room.heard, desk.levels
    for step in range(len(path)):
        node, token = np.int64(path[step]), came[step]
        if desk.room.rows[node] != NO_ROW:
            was_likely = False
            for rank in range(min(heard.sizes[node], _LIKELY)):
                was_likely = was_likely or heard.ids[node, heard.order[node, rank]] == token
            was_known = heard.known[node] == token
            learn_model(levels.request, was_likely, was_known)
            learn_model(levels.session, was_likely, was_known)
            learn_model(levels.server, was_likely, was_known)
        if heard.sizes[node] < 0:
            open_node(at, node)
        for source in range(1, NUM_SOURCES):
            desk.foretold[source] += heard.firsts[node, source] == token
        for slot in range(heard.sizes[node]):
            classes = heard.classes[node, slot]
            is_it, stances = heard.ids[node, slot] == token, stances_of(classes)
            learn_token(levels.request, stances, classes, is_it)
            learn_token(levels.session, stances, classes, is_it)
            learn_token(levels.server, stances, classes, is_it)
