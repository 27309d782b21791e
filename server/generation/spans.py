"""OpenTelemetry spans of a generation call: how long each choice was queued, prefilled and decoded, with the counts of
its speculation.

Knows no HTTP. This process takes the times, except the end of the queue, which the worker reports.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from decoding.core.stats import RequestStats
from server.generation.call import GenerationCall
from server.generation.choice import ChoiceDelta
from server.http.tracing import RequestSpan


async def traced(
    deltas: AsyncGenerator[list[ChoiceDelta]], call: GenerationCall, span: RequestSpan
) -> AsyncGenerator[list[ChoiceDelta]]:
    """The same deltas. `span` gets the call's attributes, and child spans for each choice that finishes."""
    spans = _CallSpans(span)
    tokens = {"gen_ai.usage.input_tokens": call.prompt_tokens}
    span.set({"gen_ai.request.model": call.model, "gen_ai.response.id": call.id, **tokens})
    try:
        async with aclosing(deltas):
            async for batch in deltas:
                for delta in batch:
                    spans.note(delta)
                yield batch
    finally:
        span.set({"gen_ai.usage.output_tokens": spans.num_tokens})


class _CallSpans:
    """Adds the spans of each choice when it finishes. Times are nanoseconds since 1970."""

    def __init__(self, span: RequestSpan) -> None:
        self._span = span
        self._submitted = time.time_ns()
        self._first: dict[int, int] = {}  # by choice: the time of its first delta
        self._num_tokens: dict[int, int] = {}

    @property
    def num_tokens(self) -> int:
        return sum(self._num_tokens.values())

    def note(self, delta: ChoiceDelta) -> None:
        now = time.time_ns()
        self._num_tokens[delta.index] = delta.num_tokens
        first = self._first.setdefault(delta.index, now)
        if delta.stats is None:
            return
        taken = min(self._submitted + int(delta.stats.queue_seconds * 1e9), first)
        choice = {"gander.choice": delta.index}
        self._span.add("queue", self._submitted, taken, choice)
        self._span.add("prefill", taken, first, choice | _of_prompt(delta.stats))
        self._span.add("decode", first, now, choice | _of_reply(delta, delta.stats))


def _of_prompt(stats: RequestStats) -> dict[str, int]:
    return {
        "gander.prompt_tokens": stats.prompt_tokens,
        "gander.cached_tokens": stats.cached_tokens,
        "gander.prefill_chunks": stats.prefill_chunks,
        "gander.preemptions": stats.preemptions,
    }


def _of_reply(delta: ChoiceDelta, stats: RequestStats) -> dict[str, str | int | float]:
    counts = stats.counts
    attributes: dict[str, str | int | float] = {
        "gander.finish_reason": str(delta.finish_reason),
        "gander.tokens": delta.num_tokens,
        "gander.resumed_tokens": stats.resumed_tokens,
        "gander.method": stats.method,
        "gander.target_forwards": stats.target_forwards,
        "gander.drafted": counts.drafted,
        "gander.accepted": counts.accepted,
        "gander.acceptance_length": stats.emitted / max(1, stats.target_forwards),
        "gander.draft_model_seconds": stats.draft_model_seconds,
    }
    return attributes | {f"gander.accepted.{name}": count for name, count in counts.accepted_by_source.items()}
