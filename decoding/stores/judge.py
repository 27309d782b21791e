"""How likely a token is, by the classes of what sources say of it: chances by class, and weights that mix them.

Owns the numbers and how they are learned, one token that came at a time. A class's chance is a running rate; what the
sources say together is mixed in the logistic domain, with weights for each combination of their stances (Mattern, 2012;
the mixing of the PAQ compressors). Knows nothing of trees, stores or tokens.
Invariant: `stretch[k]` is the logit of `chances[k]`.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numba as nb
import numpy as np
from numpy.typing import NDArray

from decoding.stores.evidence import NUM_CLASSES, NUM_SOURCES, SILENT, is_named, meant_chances

SERVER_TRIED, SERVER_TRUST, SERVER_PACE = 4096.0, 256.0, 0.0005  # see `Judge`; trust: in what was measured elsewhere
FIRST_HOPE, FIRST_HELP = 0.85, 0.5
HOPE_PACE = 2.0  # times that of the weights
HOPE_TRUST = 16.0
LOOKS_TRUST = 4.0
LOOKS_PACE = 5.0  # times that of the weights
FORGETTING = 0.5  # likewise
FOUND, ASKED, PROMISED, EARNED, NUM_LOOKS = range(5)  # see `Judge.looks`
NUM_STEPS = 16  # see `Judge.seen`
_MEASURED = Path(__file__).parent / "judge.json"
_LEAST = 1e-4  # that a chance may be, and that it may lack to 1
_MOST_STRETCH = 12.0
_TINY = 1e-9  # tokens
NUM_STANCES = 3 ** (NUM_SOURCES - 1)  # combinations of them


class Judge(NamedTuple):
    """One level's view. chances, stretch: float32 [K], by class; tried: float32 [K], observations that a chance rests
    on, at most `most_tried`; weights: float32 [3^S, 1 + S], of the bias and of each source, by the stances they take.
    hope: float32 [2], how often the target's token is one of the likeliest after a node that the draft model ran, and
    of how many observations; help: likewise, where what the stores thought likeliest did not come. looks: float32 [5],
    of those for a tree the shares that found one and that asked the draft model, the tokens beyond its price that one
    promised and that it earned, and of how many looks; seen: float32 [16], how often the likeliest token's chance was
    in each sixteenth. pace: how far an example moves the weights."""

    chances: NDArray[np.float32]
    stretch: NDArray[np.float32]
    tried: NDArray[np.float32]
    weights: NDArray[np.float32]
    hope: NDArray[np.float32]
    help: NDArray[np.float32]
    looks: NDArray[np.float32]
    seen: NDArray[np.float32]
    most_tried: float
    pace: float


class Levels(NamedTuple):
    """Who learns from each example: the request, whose view its trees follow, its session, and the server."""

    request: Judge
    session: Judge
    server: Judge


def arrays_of(judge: Judge) -> tuple[NDArray[np.float32], ...]:
    """All that it has learned."""
    return judge.chances, judge.stretch, judge.tried, judge.weights, judge.hope, judge.help, judge.looks, judge.seen


def below(judge: Judge, most_tried: float, pace: float, trust: float) -> Judge:
    """A judge that starts with another's view, which counts for at most `trust` observations."""
    chances, stretch, tried, weights, hope, help, looks, seen = map(np.empty_like, arrays_of(judge))
    own = Judge(chances, stretch, tried, weights, hope, help, looks, seen, most_tried, pace)
    start_over(own, judge, trust)
    return own


def start_over(own: Judge, above: Judge, trust: float) -> None:
    """Let a judge forget what it learned, and start with another's view like one that is `below` it."""
    for array, known in zip(arrays_of(own), arrays_of(above), strict=True):
        array[...] = known
    np.minimum(own.tried, np.float32(trust), out=own.tried)
    own.hope[1] = own.help[1] = HOPE_TRUST
    own.looks[NUM_LOOKS] = LOOKS_TRUST


def is_sound(judge: Judge) -> bool:
    """Whether its numbers, which came from outside, can be ones that were learned."""
    chances = np.concatenate((judge.chances, judge.hope[:1], judge.help[:1], judge.looks[:PROMISED], judge.seen))
    counts = np.concatenate((judge.tried, judge.hope[1:], judge.help[1:], judge.looks[[PROMISED, NUM_LOOKS]]))
    are_finite = all(np.isfinite(each).all() for each in (judge.stretch, judge.weights, judge.looks))
    are_within = np.all((chances >= 0) & (chances <= 1)) and np.all(counts >= 0)
    return bool(are_finite and are_within)


def new_judge(chances: NDArray[np.float32], weights: NDArray[np.float32], trust: float) -> Judge:
    """One that starts with measured numbers."""
    chances = np.clip(chances, _LEAST, 1 - _LEAST).astype(np.float32)
    assert chances.shape == (NUM_CLASSES,), chances.shape
    assert weights.shape == (NUM_STANCES, NUM_SOURCES), weights.shape
    stretch = np.log(chances / (1 - chances)).astype(np.float32)
    tried = np.full(NUM_CLASSES, trust, np.float32)
    hope, help = (np.array((first, HOPE_TRUST), np.float32) for first in (FIRST_HOPE, FIRST_HELP))
    looks, seen = np.array((1.0, 0.5, 1.0, 1.0, LOOKS_TRUST), np.float32), np.full(NUM_STEPS, 1 / NUM_STEPS, np.float32)
    return Judge(
        chances, stretch, tried, weights.astype(np.float32), hope, help, looks, seen, SERVER_TRIED, SERVER_PACE
    )


def meant_judge() -> Judge:
    """One that has nothing to go by but what the classes mean."""
    weights = np.zeros((NUM_STANCES, NUM_SOURCES), np.float32)
    for stances in range(1, NUM_STANCES):
        sources = [source for source in range(1, NUM_SOURCES) if stances // 3 ** (source - 1) % 3]
        weights[stances, sources] = len(sources) ** -0.5
    return new_judge(meant_chances(), weights, 16.0)


@cache
def _measured(kind: str) -> Judge:
    measured = json.loads(_MEASURED.read_text(encoding="utf-8"))[kind]
    return new_judge(np.array(measured["chances"]), np.array(measured["weights"]), SERVER_TRUST)


def measured_judges() -> tuple[Judge, Judge]:
    """A server's at its start, of greedy and of sampled requests: by rates measured on the bundled model."""
    greedy, sampled = (_own(_measured(kind)) for kind in ("greedy", "sampled"))
    return greedy, sampled


def _own(measured: Judge) -> Judge:
    return below(measured, SERVER_TRIED, SERVER_PACE, SERVER_TRUST)


@nb.njit(cache=True, forceinline=True)
def stances_of(classes: NDArray[np.int16]) -> int:
    """The sources' stances on a token: digits of base 3, 0 of one that is silent, 1 of one that names other tokens, 2
    of one that names this one."""
    stances = 0
    for source in range(NUM_SOURCES - 1, 0, -1):
        kind = classes[source]
        stances = 3 * stances + (0 if kind == SILENT else 1 + is_named(kind))
    return stances


@nb.njit(cache=True, forceinline=True)
def chance_of(judge: Judge, stances: int, classes: NDArray[np.int16]) -> float:
    """Of a token of which the sources say `classes`, int16 [1 + S]."""
    mixed = judge.weights[stances, 0]
    for source in range(1, NUM_SOURCES):
        if classes[source] != SILENT:
            mixed += judge.weights[stances, source] * judge.stretch[classes[source]]
    return 1.0 / (1.0 + math.exp(-min(max(mixed, -_MOST_STRETCH), _MOST_STRETCH)))


@nb.njit(cache=True)
def learn_token(judge: Judge, stances: int, classes: NDArray[np.int16], came: bool) -> None:
    """A token of which the sources said `classes` came, or did not."""
    error = came - chance_of(judge, stances, classes)
    judge.weights[stances, 0] += judge.pace * error
    for source in range(1, NUM_SOURCES):
        kind = classes[source]
        if kind == SILENT:
            continue
        judge.weights[stances, source] += judge.pace * error * judge.stretch[kind]
        judge.tried[kind] = min(judge.tried[kind] + 1, judge.most_tried)
        chance = judge.chances[kind] + (came - judge.chances[kind]) / judge.tried[kind]
        judge.chances[kind] = min(max(chance, _LEAST), 1 - _LEAST)
        judge.stretch[kind] = math.log(judge.chances[kind] / (1 - judge.chances[kind]))


@nb.njit(cache=True)
def learn_chance(levels: Levels, chance: float, promised: float) -> None:
    """A look for a tree found that the likeliest next token is so likely, which promises so many tokens beyond their
    price."""
    step = min(int(chance * NUM_STEPS), NUM_STEPS - 1)
    for judge in levels:
        judge.looks[NUM_LOOKS] += 1
        share = _share(judge)
        judge.looks[PROMISED] += share * (promised - judge.looks[PROMISED])
        for other in range(NUM_STEPS):
            judge.seen[other] += share * ((other == step) - judge.seen[other])


@nb.njit(cache=True)
def learn_look(levels: Levels, found_tree: bool, asked_model: bool, earned: float) -> None:
    """The look led to a tree or not, asked the draft model or not, and earned so many tokens beyond their price. Where
    the draft model is not asked, what was thought of it long ago counts less and less."""
    for judge in levels:
        share = _share(judge)
        judge.looks[FOUND] += share * (found_tree - judge.looks[FOUND])
        judge.looks[ASKED] += share * (asked_model - judge.looks[ASKED])
        judge.looks[EARNED] += share * (earned - judge.looks[EARNED])
    if not asked_model:
        _regain(levels.request, levels.session)
        _regain(levels.session, levels.server)


@nb.njit(cache=True, forceinline=True)
def kept(judge: Judge) -> float:
    """How much looks have earned of what they promised."""
    return float(judge.looks[EARNED] / max(judge.looks[PROMISED], _TINY))


@nb.njit(cache=True, forceinline=True)
def _share(judge: Judge) -> float:
    """That the latest look has of what is known of looks."""
    return float(max(LOOKS_PACE * judge.pace, 1 / judge.looks[NUM_LOOKS]))


@nb.njit(cache=True, forceinline=True)
def _regain(judge: Judge, above: Judge) -> None:
    share = judge.pace * FORGETTING
    judge.hope[0] += share * (above.hope[0] - judge.hope[0])
    judge.help[0] += share * (above.help[0] - judge.help[0])


@nb.njit(cache=True)
def learn_model(judge: Judge, was_likely: bool, was_known: bool) -> None:
    """After a node that the draft model ran came one of the likeliest tokens, or another; was_known: what the stores
    alone thought likeliest."""
    _observe(judge.hope, judge.pace, was_likely)
    if not was_known:
        _observe(judge.help, judge.pace, was_likely)


@nb.njit(cache=True, forceinline=True)
def _observe(rate: NDArray[np.float32], pace: float, came: bool) -> None:
    rate[1] += 1
    rate[0] += max(HOPE_PACE * pace, 1 / rate[1]) * (came - rate[0])
