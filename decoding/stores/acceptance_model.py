"""How likely a token is, by the classes of what sources say of it: chances by class, and weights that mix them.

Owns the numbers and how they are learned, one token that came at a time. A class's chance is a running rate; what the
sources say together is mixed in the logistic domain, with weights for each combination of their stances (Mattern, 2012;
the mixing of the PAQ compressors). The chance is read off a reliability diagram, PAQ's last stage: of the tokens that
were called so likely, how many came. Knows nothing of trees, stores or tokens.
Invariant: `stretch[k]` is the logit of `chances[k]`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.costs.acceptance import FIRST, numbers_of
from decoding.kernels.numba_kernel import kernel
from decoding.stores.evidence import NUM_CLASSES, NUM_SOURCES, SILENT, is_named, meant_chances

SERVER_TRIED, SERVER_LEARNING_RATE = 4096.0, 0.0005  # see `AcceptanceModel`
SERVER_TRUST = 256.0  # observations that rates measured elsewhere count for
FIRST_HIT_RATE, FIRST_RESCUE_RATE, FIRST_ASKED_RATE = 0.85, 0.5, 0.5
RATES_PACE = 2.0  # times that of the weights, at which the hit rates follow what comes
RATES_TRUST, FIRST_TRUST = 16.0, 8.0  # observations that a rate counts for, and one that was never observed
ASKED_PACE, ASKED_TRUST = 5.0, 4.0
FORGETTING = 0.5  # times that of the weights
_MEASURED = Path(__file__).parent / "acceptance_model.json"
_LEAST = 1e-4  # that a chance may be, and that it may lack to 1
_MOST_STRETCH = 12.0
_LAST_KNOT = 5.0
_KNOTS = np.arange(-_LAST_KNOT, _LAST_KNOT + 1, dtype=np.float32)  # of the reliability diagram, in logits
_MOST_WEIGHT = 1e6  # far beyond what is learned; their sums stay finite
NUM_STANCES = 3 ** (NUM_SOURCES - 1)  # combinations of them


class AcceptanceModel(NamedTuple):
    """One level's view. chances, stretch: float32 [K], by class; tried: float32 [K], observations that a chance rests
    on, at most `most_tried`; weights: float32 [3^S, 1 + S], of the bias and of each source, by the stances they take.

    reliability: float32 [2, 11], the chances that tokens of a mixed logit of -5, -4 ... 5 have, and observations.
    Rates are float32 [2], with how many observations each rests on. hit_rate: how often the target's token is one of
    the likeliest after a node that the draft model ran; rescue_rate: likewise, where what the stores thought likeliest
    did not come; asked_rate: how many probes led to a tree that the draft model was asked for. learning_rate: how far
    an example moves the weights. lately: float32 [5], what a step brings, as `pricing.numbers_of`."""

    chances: NDArray[np.float32]
    stretch: NDArray[np.float32]
    tried: NDArray[np.float32]
    weights: NDArray[np.float32]
    hit_rate: NDArray[np.float32]
    rescue_rate: NDArray[np.float32]
    asked_rate: NDArray[np.float32]
    reliability: NDArray[np.float32]
    lately: NDArray[np.float32]
    most_tried: float
    learning_rate: float


class Levels(NamedTuple):
    """Who learns from each example: the request, whose view its trees follow, its session, and the server."""

    request: AcceptanceModel
    session: AcceptanceModel
    server: AcceptanceModel


def arrays_of(model: AcceptanceModel) -> tuple[NDArray[np.float32], ...]:
    """All that it has learned."""
    return tuple(each for each in model if isinstance(each, np.ndarray))


def below(model: AcceptanceModel, most_tried: float, learning_rate: float, trust: float) -> AcceptanceModel:
    """A model that starts with another's view, which counts for at most `trust` observations."""
    copies = dict(zip(model._fields, (each.copy() for each in arrays_of(model)), strict=False))
    own = model._replace(**copies, most_tried=most_tried, learning_rate=learning_rate)
    for counts in (own.tried, own.reliability[1]):
        np.minimum(counts, np.float32(trust), out=counts)
    trust_less(own)
    return own


def trust_less(model: AcceptanceModel) -> None:
    """Let its draft model's rates, which were observed elsewhere, follow what comes here."""
    for rate in (model.hit_rate, model.rescue_rate):
        rate[1] = min(rate[1], RATES_TRUST)
    model.asked_rate[1] = ASKED_TRUST


def catch_up(session: AcceptanceModel, server: AcceptanceModel) -> None:
    """Take over what the server knows of the draft model by now, where the session has hardly asked it."""
    if session.hit_rate[1] <= min(RATES_TRUST, server.hit_rate[1]):
        for own, known in zip(_rates(session), _rates(server), strict=True):
            own[:] = known
        trust_less(session)


def _rates(model: AcceptanceModel) -> tuple[NDArray[np.float32], ...]:
    """Of the draft model."""
    return model.hit_rate, model.rescue_rate, model.asked_rate


def rates_of(model: AcceptanceModel) -> list[tuple[float, float]]:
    """What it has learned of the draft model, in a form that can be kept."""
    return [(float(rate), float(count)) for rate, count in _rates(model)]


def take_rates(model: AcceptanceModel, rates: Sequence[tuple[float, float]]) -> None:
    """Take over what `rates_of` said. Raises ValueError for what it cannot have said."""
    known = np.array(rates, np.float32)
    if known.shape != (len(_rates(model)), 2) or not _are_rates(known):
        raise ValueError("these are no rates of a draft model")
    for own, each in zip(_rates(model), known, strict=True):
        own[:] = each


def _are_rates(rates: NDArray[np.float32]) -> bool:
    """rates: float32 [n, 2], with their observations."""
    shares, counts = rates.T
    return bool(
        np.all((shares >= np.float32(_LEAST)) & (shares <= np.float32(1 - _LEAST)))
        and np.all((counts >= 1) & np.isfinite(counts))
    )


def is_sound(model: AcceptanceModel) -> bool:
    """Whether its numbers, which came from outside, can be ones that were learned."""
    chances = np.concatenate((model.chances, model.reliability[0]))
    counts = np.concatenate((model.tried, model.reliability[1]))
    return bool(
        np.all((chances >= 0) & (chances <= 1))
        and np.all((counts >= 0) & np.isfinite(counts))
        and _are_rates(np.stack(_rates(model)))
        and np.all((model.lately >= 0) & (model.lately <= _MOST_WEIGHT))
        and np.all(np.abs(model.stretch) <= _MOST_STRETCH)
        and np.all(np.abs(model.weights) <= _MOST_WEIGHT)
    )


def new_model(
    chances: NDArray[np.float32],
    weights: NDArray[np.float32],
    trust: float,
    reliability: NDArray[np.float32] | None = None,
) -> AcceptanceModel:
    """One that starts with measured numbers. reliability: None where mixed chances are taken as they are."""
    chances = np.clip(chances, _LEAST, 1 - _LEAST).astype(np.float32)
    assert chances.shape == (NUM_CLASSES,), chances.shape
    assert weights.shape == (NUM_STANCES, NUM_SOURCES), weights.shape
    stretch = np.log(chances / (1 - chances)).astype(np.float32)
    tried = np.full(NUM_CLASSES, trust, np.float32)
    if reliability is None:
        reliability = (1 / (1 + np.exp(-_KNOTS))).astype(np.float32)
    assert reliability.shape == _KNOTS.shape, reliability.shape
    return AcceptanceModel(
        chances=chances,
        stretch=stretch,
        tried=tried,
        weights=weights.astype(np.float32),
        hit_rate=np.array((FIRST_HIT_RATE, FIRST_TRUST), np.float32),
        rescue_rate=np.array((FIRST_RESCUE_RATE, FIRST_TRUST), np.float32),
        asked_rate=np.array((FIRST_ASKED_RATE, ASKED_TRUST), np.float32),
        reliability=np.stack((reliability, np.full_like(_KNOTS, trust))),
        lately=np.array(numbers_of(FIRST), np.float32),
        most_tried=SERVER_TRIED,
        learning_rate=SERVER_LEARNING_RATE,
    )


def unmeasured_model() -> AcceptanceModel:
    """One that has nothing to go by but what the classes mean."""
    weights = np.zeros((NUM_STANCES, NUM_SOURCES), np.float32)
    for stances in range(1, NUM_STANCES):
        sources = [source for source in range(1, NUM_SOURCES) if stances // 3 ** (source - 1) % 3]
        weights[stances, sources] = len(sources) ** -0.5
    return new_model(meant_chances(), weights, 16.0)


@cache
def _measured(kind: str) -> AcceptanceModel:
    measured = json.loads(_MEASURED.read_text(encoding="utf-8"))[kind]
    reliability = np.array(measured["reliability"], np.float32)
    return new_model(np.array(measured["chances"]), np.array(measured["weights"]), SERVER_TRUST, reliability)


def measured_models() -> tuple[AcceptanceModel, AcceptanceModel]:
    """A server's at its start, of greedy and of sampled requests: by rates measured on real models."""
    greedy, sampled = (_own(_measured(kind)) for kind in ("greedy", "sampled"))
    return greedy, sampled


def _own(measured: AcceptanceModel) -> AcceptanceModel:
    return below(measured, SERVER_TRIED, SERVER_LEARNING_RATE, SERVER_TRUST)


@kernel(forceinline=True, borrows=True)
def stances_of(classes: NDArray[np.int16]) -> int:
    """The sources' stances on a token: digits of base 3, 0 of one that is silent, 1 of one that names other tokens, 2
    of one that names this one."""
    stances = 0
    for source in range(NUM_SOURCES - 1, 0, -1):
        kind = classes[source]
        stances = 3 * stances + (0 if kind == SILENT else 1 + is_named(kind))
    return stances


@kernel(forceinline=True, borrows=True)
def _mixed(model: AcceptanceModel, stances: int, classes: NDArray[np.int16]) -> float:
    """The logit of what the sources say together."""
    mixed = model.weights[stances, 0]
    for source in range(1, NUM_SOURCES):
        if classes[source] != SILENT:
            mixed += model.weights[stances, source] * model.stretch[classes[source]]
    return min(max(mixed, -_MOST_STRETCH), _MOST_STRETCH)


@kernel(forceinline=True, borrows=True)
def _between(mixed: float) -> tuple[int, float]:
    """The knot of the reliability diagram below a logit, and its share of the next one."""
    place = min(max(mixed, -_LAST_KNOT), _LAST_KNOT) + _LAST_KNOT
    knot = min(int(place), len(_KNOTS) - 2)
    return knot, place - knot


@kernel(forceinline=True, borrows=True)
def chance_of(model: AcceptanceModel, stances: int, classes: NDArray[np.int16]) -> float:
    """Of a token of which the sources say `classes`, int16 [1 + S]."""
    knot, share = _between(_mixed(model, stances, classes))
    return float((1.0 - share) * model.reliability[0, knot] + share * model.reliability[0, knot + 1])


@kernel(borrows=True)
def learn_token(model: AcceptanceModel, stances: int, classes: NDArray[np.int16], came: bool) -> None:
    """A token of which the sources said `classes` came, or did not."""
    mixed = _mixed(model, stances, classes)
    knot, share = _between(mixed)
    for place, part in ((knot, 1.0 - share), (knot + 1, share)):
        tried = model.reliability[1, place] = min(model.reliability[1, place] + part, model.most_tried)
        model.reliability[0, place] += part / tried * (came - model.reliability[0, place])
    error = came - 1.0 / (1.0 + math.exp(-mixed))
    model.weights[stances, 0] += model.learning_rate * error
    for source in range(1, NUM_SOURCES):
        kind = classes[source]
        if kind == SILENT:
            continue
        model.weights[stances, source] += model.learning_rate * error * model.stretch[kind]
        model.tried[kind] = min(model.tried[kind] + 1, model.most_tried)
        chance = model.chances[kind] + (came - model.chances[kind]) / model.tried[kind]
        model.chances[kind] = min(max(chance, _LEAST), 1 - _LEAST)
        model.stretch[kind] = math.log(model.chances[kind] / (1 - model.chances[kind]))


@kernel(borrows=True)
def learn_probe(levels: Levels, asked_model: bool) -> None:
    """A probe led to a tree that the draft model was asked for, or did not. Where it is not asked, what was thought of
    it long ago counts less and less."""
    for model in levels:
        _observe(model.asked_rate, ASKED_PACE * model.learning_rate, asked_model)
    if not asked_model:
        _regain(levels.request, levels.session)
        _regain(levels.session, levels.server)


@kernel(forceinline=True, borrows=True)
def _regain(model: AcceptanceModel, above: AcceptanceModel) -> None:
    share = model.learning_rate * FORGETTING
    model.hit_rate[0] += share * (above.hit_rate[0] - model.hit_rate[0])
    model.rescue_rate[0] += share * (above.rescue_rate[0] - model.rescue_rate[0])


@kernel(borrows=True)
def learn_hit(model: AcceptanceModel, was_likely: bool, was_known: bool) -> None:
    """After a node that the draft model ran came one of the likeliest tokens, or another; was_known: what the stores
    alone thought likeliest."""
    pace = RATES_PACE * model.learning_rate
    _observe(model.hit_rate, pace, was_likely)
    if not was_known:
        _observe(model.rescue_rate, pace, was_likely)


@kernel(forceinline=True, borrows=True)
def _observe(rate: NDArray[np.float32], pace: float, came: bool) -> None:
    rate[1] += 1
    seen = rate[0] + max(pace, 1 / rate[1]) * (came - rate[0])
    rate[0] = min(max(seen, _LEAST), 1 - _LEAST)  # what grows by a rate divides by its logarithm
