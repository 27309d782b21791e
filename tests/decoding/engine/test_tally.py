"""What a step counts by method: forwards, tokens, budgets and trees."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from decoding.core.stats import NODE_BOUNDS, DraftCounts, DraftOutcome, MethodCounts, NodeHistogram
from decoding.core.tree import DraftTree, IntArray, Source, root_only
from decoding.costs.price import CostCurve, DraftBudget
from decoding.drafting.sequence_drafter import Choice
from decoding.engine.scheduler import Reuse
from decoding.engine.tally import StepTally, outcome_of

CURVE = CostCurve(base=0.001, token=0.0001, key=0.0)


def tree_of(*sources: Source) -> DraftTree:
    """A chain under the root."""
    num_nodes = len(sources) + 1
    parents = np.arange(-1, num_nodes - 1, dtype=np.int32)
    return DraftTree(np.arange(num_nodes, dtype=np.int32), parents, np.array([Source.ROOT, *sources], np.int8))


def emitting(num_nodes: int) -> IntArray:
    """The first of a chain's nodes."""
    return np.arange(1, num_nodes + 1, dtype=np.int32)


def step_of(method: str, num_emitted: int, max_nodes: int) -> Any:
    """What a tally reads of a sequence's step."""
    drafter = SimpleNamespace(active=SimpleNamespace(choice=Choice(method)))
    return SimpleNamespace(drafter=drafter, num_emitted=num_emitted, budget=DraftBudget(max_nodes))


def test_a_step_counts_its_requests_by_method() -> None:
    tally = StepTally()
    tally.add(step_of("spine", 3, 64), 10, DraftOutcome(12, 2, [], []))
    tally.add(step_of("spine", 1, 64), 20, None)
    tally.add(step_of("none", 1, 0), 30, None)
    stats = tally.stats(16, 0, Reuse(queries=40, hits=32, preemptions=1), CURVE)
    spine, none = stats.counts_by_method["spine"], stats.counts_by_method["none"]
    assert (spine.forwards, spine.emitted, none.forwards, none.emitted) == (2, 4, 1, 1)
    assert (spine.budgets.numbers, spine.budgets.total) == ({NODE_BOUNDS.index(64): 2}, 128)
    assert (spine.trees.numbers, spine.trees.total) == ({NODE_BOUNDS.index(16): 1, 0: 1}, 12)
    assert none.budgets.numbers == {0: 1}
    assert (stats.prefix_queries, stats.prefix_hits, stats.preemptions) == (40, 32, 1)
    assert stats.plain_seconds == CURVE.plain_seconds(5, [10, 20, 30])


def test_a_tree_is_counted_by_source_and_depth_in_every_record() -> None:
    method, request = MethodCounts(), DraftCounts()
    outcomes = [
        outcome_of(tree_of(Source.CONTEXT, Source.CONTEXT, Source.NGRAM), emitting(2)),
        outcome_of(tree_of(Source.NGRAM), emitting(1)),
        outcome_of(root_only(7), emitting(0)),
    ]
    assert outcomes[-1] is None
    for counts in (method, request):
        for outcome in outcomes[:-1]:
            assert outcome is not None
            counts.count(outcome)
        assert (counts.drafts, counts.drafted, counts.accepted) == (2, 4, 3)
        assert counts.drafted_by_source == {"context": 2, "ngram": 2}
        assert counts.accepted_by_source == {"context": 2, "ngram": 1}
        assert counts.accepted_by_depth == [2, 1]


def test_a_histogram_has_a_bucket_for_every_size() -> None:
    whole = NodeHistogram()
    for num_nodes in range(200):
        part = NodeHistogram()
        part.add(num_nodes)
        whole.merge(part)
    assert whole.numbers == {0: 1, 1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 16, 7: 32, 8: 64, 9: 71}
    assert whole.total == sum(range(200))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(whole), type=NodeHistogram) == whole
