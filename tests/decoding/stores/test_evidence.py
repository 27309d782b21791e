"""Every thing a source may say of a token is a class of its own, and says whether the source names the token."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from decoding.stores.evidence import (
    ADJACENCY,
    FORCED,
    MODEL,
    NGRAM,
    NUM_CLASSES,
    NUM_DEPTHS,
    SILENT,
    copied_class,
    foreseen_class,
    is_forced,
    is_named,
    listed_classes,
    meant_chances,
    other_copied_class,
    other_foreseen_class,
    step_of,
    weight_step,
)

WEIGHTS = np.linspace(0, 1, 2001)
SUFFIXES, BOTH = range(1, 33), (False, True)
LISTS = [(ADJACENCY, range(2)), (NGRAM, range(8)), (MODEL, range(2 * NUM_DEPTHS))]


@pytest.mark.parametrize(("value", "step"), [(1.0, 0), (0.9, 0), (0.8999, 1), (0.5, 1), (0.3, 2), (0.0, 2)])
def test_a_step_begins_at_its_bound(value: float, step: int) -> None:
    assert step_of(value, (0.9, 0.5)) == step


def test_every_class_is_of_one_source_and_either_names_the_token_or_another() -> None:
    copied = {copied_class(*known) for known in product(SUFFIXES, BOTH, BOTH, (0.0, 0.1, 0.4, 3.0))}
    parts = [copied, {other_copied_class(suffix_len) for suffix_len in SUFFIXES}]
    reasons = range(FORCED + 1)
    parts.append({foreseen_class(*known) for known in product(reasons, (0.0, 0.1, 0.4, 3.0))})
    parts.append({other_foreseen_class(reason) for reason in reasons})
    for source, kinds in LISTS:
        firsts = [listed_classes(source, kind) for kind in kinds]
        parts += [{first[side] + weight_step(weight) for first in firsts for weight in WEIGHTS} for side in (0, 1)]
    assert set().union(*parts) == set(range(NUM_CLASSES))
    assert sum(map(len, parts)) == NUM_CLASSES, "two sources share a class"
    for place, classes in enumerate(parts):
        assert {is_named(kind) for kind in classes} == {place % 2 == 0}
    assert not is_named(SILENT)
    forced = {kind for kind in range(NUM_CLASSES) if is_forced(kind)}
    assert forced == {foreseen_class(FORCED, variate) for variate in (0.0, 0.1, 0.4, 3.0)}


def test_more_shared_tokens_consensus_and_a_heavier_weight_mean_a_better_chance() -> None:
    chances = meant_chances()
    by_suffix = [chances[copied_class(suffix_len, False, False, 0.0)] for suffix_len in SUFFIXES]
    assert by_suffix == sorted(by_suffix)
    assert by_suffix[0] < by_suffix[-1]
    for source, kinds in LISTS:
        for kind in kinds:
            by_weight = [chances[listed_classes(source, kind)[0] + weight_step(weight)] for weight in WEIGHTS]
            assert by_weight == sorted(by_weight)
            assert by_weight[0] < 0.05 < 0.95 < by_weight[-1]


def test_a_lucky_draw_is_evidence_of_its_own() -> None:
    lucks = [copied_class(5, False, True, variate) for variate in (0.0, 0.1, 0.4, 3.0)]
    assert len(set(lucks)) == 4
    assert copied_class(5, False, True, 0.01) == lucks[0]
    assert len({copied_class(5, *kind, 0.01) for kind in product(BOTH, BOTH)}) == 4
