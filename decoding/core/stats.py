"""Raw counts of speculation, per step and per request. Whoever shows a ratio computes it.

This file does not know Prometheus. A count is of tokens unless its name says otherwise.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import msgspec

NODE_BOUNDS = (0, 1, 2, 4, 8, 16, 32, 64, 128)
REFUSAL_REASONS = ("context", "vocabulary", "nan")  # why the draft model stops drafting for a request
# All that counts are kept by, so that whoever shows them has each from the start, at 0.
METHOD_NAMES = (
    *("auto", "spine", "stand", "dynamic", "fixed", "linear", "eagle", "recycle", "isotropic", "suffix", "lookup"),
    "none",
)
CHOICES = ("requested", "fallback", "waiting")  # why a method was the one that drafted last
PHASES = ("schedule", "draft", "draft_model", "forward", "sample", "commit", "observe")  # of a step
DRAFTED_SOURCES = ("context", "adjacency", "ngram", "draft_model", "prediction", "grammar")


class DraftOutcome(NamedTuple):
    """The counts of one verified tree. *_by_source: (`Source` name in lower case, number of nodes)."""

    drafted: int
    accepted: int
    drafted_by_source: list[tuple[str, int]]
    accepted_by_source: list[tuple[str, int]]


class DraftCounts(msgspec.Struct, kw_only=True):
    """Acceptance counts. `*_by_source` is keyed by `Source` name in lower case, `*_by_depth[d - 1]` by depth d."""

    drafts: int = 0  # trees with at least one drafted node
    drafted: int = 0
    accepted: int = 0
    drafted_by_source: dict[str, int] = {}
    accepted_by_source: dict[str, int] = {}
    accepted_by_depth: list[int] = []

    def count(self, outcome: DraftOutcome) -> None:
        """Add one verified tree of at least one drafted node."""
        self.drafts += 1
        self.drafted += outcome.drafted
        self.accepted += outcome.accepted
        for by_source, added in (
            (self.drafted_by_source, outcome.drafted_by_source),
            (self.accepted_by_source, outcome.accepted_by_source),
        ):
            for name, number in added:
                by_source[name] = by_source.get(name, 0) + number
        by_depth = self.accepted_by_depth
        if len(by_depth) < outcome.accepted:
            by_depth.extend([0] * (outcome.accepted - len(by_depth)))
        for depth in range(outcome.accepted):
            by_depth[depth] += 1


class NodeHistogram(msgspec.Struct, kw_only=True, array_like=True):
    """A histogram of tree sizes. `numbers[i]` counts the trees of at most `NODE_BOUNDS[i]` nodes and more than the
    bound before; `numbers[len(NODE_BOUNDS)]` counts those above all bounds. total: the nodes of all trees."""

    numbers: dict[int, int] = {}
    total: int = 0

    def add(self, num_nodes: int, num_trees: int = 1) -> None:
        """So many trees of this size."""
        bucket = bisect_left(NODE_BOUNDS, num_nodes)
        self.numbers[bucket] = self.numbers.get(bucket, 0) + num_trees
        self.total += num_trees * num_nodes

    def merge(self, other: NodeHistogram) -> None:
        for bucket, number in other.numbers.items():
            self.numbers[bucket] = self.numbers.get(bucket, 0) + number
        self.total += other.total


class MethodCounts(DraftCounts, kw_only=True, array_like=True):
    """One method's counts in a step. Acceptance length is emitted / forwards.

    forwards: verified roots, one for each request that used this method. budgets: the nodes that the scheduler allowed
    each of them. trees: the nodes that each drafted. A plain step counts as 0 in both.
    """

    forwards: int = 0
    emitted: int = 0
    budgets: NodeHistogram = msgspec.field(default_factory=NodeHistogram)
    trees: NodeHistogram = msgspec.field(default_factory=NodeHistogram)


class RequestStats(msgspec.Struct, kw_only=True):
    """What one finished request cost. Times are seconds of the worker's monotonic clock.

    cached_tokens: prompt tokens that another request had run already. preemptions: how often the request gave up its
    blocks and was recomputed. resumed_tokens: reply tokens that a worker emitted before it died; all other fields
    describe what came after them. target_forwards: the steps that verified a root, so that acceptance length is
    emitted / target_forwards. prefill_chunks: the prompt chunks that end before the root. accepted_prediction_tokens:
    tokens of the request's prediction that the reply contains where it follows the prediction;
    rejected_prediction_tokens: the others (OpenAI's definition). Both depend on prediction and reply alone, not on what
    was drafted, and add up to the prediction's length.
    """

    method: str = ""
    choice: str = "requested"  # or "fallback", "waiting"
    reason: str = ""  # why this method was chosen: a sentence
    steps_by_method: dict[str, int] = {}
    foretold_by_source: dict[str, int] = {}  # emitted tokens that a source predicted as the most likely, drafted or not
    prompt_tokens: int
    cached_tokens: int = 0
    preemptions: int = 0
    resumed_tokens: int = 0
    emitted: int = 0
    target_forwards: int = 0
    prefill_chunks: int = 0
    counts: DraftCounts = msgspec.field(default_factory=DraftCounts)
    queue_seconds: float = 0.0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0  # first token to last
    draft_model_seconds: float = 0.0  # this request's share of the draft model's forwards
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class StepStats(msgspec.Struct, kw_only=True, array_like=True):
    """One engine step, all requests together. `phase_seconds` is keyed by `PHASES`.

    rows: the step's tokens; prefill_rows: those of prompts. plain_seconds: an estimate of what plain decoding would
    have needed for the emitted tokens, from the measured cost of a plain step with as many requests and context; 0 for
    a step that only prefilled. prefix_queries: tokens of the prompts that this step started; prefix_hits: those found
    in the cache. preemptions: sequences that gave up their place or their blocks to others.
    """

    rows: int
    prefill_rows: int
    step_seconds: float
    plain_seconds: float
    phase_seconds: dict[str, float]
    counts_by_method: dict[str, MethodCounts]
    refusals: dict[str, int] = {}  # by reason: requests that the draft model stopped drafting for
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


class EngineStats(msgspec.Struct, kw_only=True):
    """Gauges of the engine at present. slots_used: slots of blocks that requests hold; slots_cached: slots of blocks
    that no request holds but whose tokens a later prompt may reuse. state_bytes: of all states that layers carry from
    token to token; state_checkpoints: how many of them are kept for later prompts. kept_bytes: of the files of prompts;
    kept_hits: prompts for which files were read since the start, kept_tokens: the tokens that were, kept_seconds: what
    that took."""

    running: int
    waiting: int
    slots_used: int
    slots_cached: int
    slots_total: int
    sessions: int
    session_bytes: int
    resident_bytes: int
    draft_bytes: int = 0  # weights of the draft model and its part of all slots
    state_bytes: int = 0
    state_checkpoints: int = 0
    kept_bytes: int = 0
    kept_hits: int = 0
    kept_tokens: int = 0
    kept_seconds: float = 0.0
