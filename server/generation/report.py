"""The `speculation` object of a choice: what drafting did for the choice. Pure."""

from __future__ import annotations

from decoding.core.stats import RequestStats
from server.schemas.replies import SpeculationReport


def speculation_report(stats: RequestStats) -> SpeculationReport:
    """The counts of one choice, and its acceptance length τ: tokens per target forward."""
    forwards, counts = stats.target_forwards, stats.counts
    return {
        "method": stats.method,
        "choice": stats.choice,
        "reason": stats.reason,
        "steps_by_method": stats.steps_by_method,
        "steps": forwards,
        "acceptance_length": stats.emitted / forwards if forwards else None,
        "drafts": counts.drafts,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "drafted_by_source": counts.drafted_by_source,
        "accepted_by_source": counts.accepted_by_source,
        "foretold_by_source": stats.foretold_by_source,
        "accepted_by_depth": counts.accepted_by_depth,
        "prefill_chunks": stats.prefill_chunks,
        "cached_tokens": stats.cached_tokens,
        "preemptions": stats.preemptions,
        "resumed_tokens": stats.resumed_tokens,
        "queue_seconds": stats.queue_seconds,
        "time_to_first_token": stats.time_to_first_token,
        "decode_seconds": stats.decode_seconds,
        "draft_model_seconds": stats.draft_model_seconds,
    }
