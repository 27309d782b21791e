"""The rounds in which the trees of all sequences grow together, by what a draft model or a head says.

Knows nothing of models: a forward is given. Invariant: no row of a tree is run twice, unless layers carry a state: then
each round runs the whole tree, since no state of its rows is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from decoding.cache.batch import Segment
from decoding.core.top_tokens import TopTokens
from decoding.core.tree import IntArray
from decoding.drafting.draft_model.state import DraftModelState, DraftRows, Fallback, GrowthRequest

ForwardRows = Callable[[Sequence[tuple[DraftModelState, Segment]]], list[TopTokens]]  # what follows each segment's rows


def unseen_of(
    requests: Iterable[GrowthRequest], unseen: Callable[[GrowthRequest, int], Segment], most_rows: int
) -> list[tuple[GrowthRequest, Segment]]:
    """What each sequence has not run yet, as far as one forward of `most_rows` has room: who comes first takes what it
    needs. unseen: of one sequence, at most so many rows."""
    found, left = [], most_rows
    for request in requests:
        segment = unseen(request, left)
        found.append((request, segment))
        left -= len(segment.tokens)
    return found


def grow_in_rounds(
    unseen: Sequence[tuple[GrowthRequest, Segment]],
    forward: ForwardRows,
    most_depth: Callable[[GrowthRequest], int],
    whose: str,
) -> dict[DraftModelState, Fallback]:
    """Run what was not run yet of each sequence; then let the trees of those that are through to their root grow by
    what follows it and the rows that they ask for, all together, until none asks. Which ones were told what is no
    number. most_depth: of a tree's rows; whose: who told them."""
    unseen = [(request, segment) for request, segment in unseen if len(segment.tokens)]
    tops, growing = _run(forward, [(request.state, segment) for request, segment in unseen]), []
    for (request, segment), top in zip(unseen, tops, strict=True):
        state = request.state
        state.store.commit(segment.rows, np.arange(len(segment.tokens), dtype=np.int32))
        if segment.logits == "last" and request.budget is not None and state.grower is not None:
            state.grower.begin(request.budget, segment.rows.room, most_depth(request))
            growing.append((state, top))
    fallbacks: dict[DraftModelState, Fallback] = {}
    trees: dict[DraftModelState, IntArray] = {}  # tokens, where layers carry a state
    while growing:
        asked = []
        for state, top in growing:
            if not np.isfinite(top.probabilities).all():
                fallbacks[state] = Fallback("nan", f"the {whose} gave numbers that are not finite")
                continue
            assert state.grower is not None
            rows = state.grower.grow(top)
            if rows is not None:
                asked.append((state, _segment(state, rows, trees)))
        growing = list(zip([state for state, _ in asked], _run(forward, asked), strict=True))
    return fallbacks


def _segment(state: DraftModelState, rows: DraftRows, trees: dict[DraftModelState, IntArray]) -> Segment:
    assert state.rows is not None
    if state.rows.state is None:
        return Segment(state.rows, rows.tokens, rows.parents, "all", len(rows.parents) - len(rows.tokens))
    trees[state] = np.concatenate((trees.get(state, rows.tokens[:0]), rows.tokens))
    return Segment(state.rows, trees[state], rows.parents, len(rows.tokens), num_certain=0)


def _run(forward: ForwardRows, asked: Sequence[tuple[DraftModelState, Segment]]) -> list[TopTokens]:
    """A forward, if there is anything to run, paid by the sequences according to their rows."""
    if not asked:
        return []
    started = time.perf_counter()
    tops = forward(asked)
    seconds, num_rows = time.perf_counter() - started, sum(len(segment.tokens) for _, segment in asked)
    for state, segment in asked:
        state.note_forward(seconds * len(segment.tokens) / num_rows, len(segment.tokens))
    return tops
