"""What one step came to: what it says of each request, and its counts. Pure data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from decoding.core.events import RequestEvent, Traced
from decoding.core.stats import StepStats
from decoding.core.step_trace import StepTrace

E = TypeVar("E", bound=RequestEvent)


@dataclass(slots=True)
class StepResult:
    """events are in the order in which they are to be told. stats is None for a step that found nothing to run.

    traces holds what requests asked to see of the step, with their ids, until the step ends and its seconds are known.
    """

    events: list[RequestEvent] = field(default_factory=list)
    traces: list[tuple[str, StepTrace]] = field(default_factory=list)
    stats: StepStats | None = None

    def tell_traces(self, stats: StepStats) -> None:
        """Put the traces before the tokens that they speak of. stats: what the whole step came to."""
        self.events[:0] = [
            Traced(
                request_id=request_id,
                trace=trace,
                seconds=stats.step_seconds,
                plain_seconds=stats.plain_seconds,
                prefill_rows=stats.prefill_rows,
            )
            for request_id, trace in self.traces
        ]

    def of(self, kind: type[E]) -> list[E]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]
