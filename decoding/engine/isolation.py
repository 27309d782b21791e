"""One step, in which what is raised for a sequence ends that sequence and no other.

Owns how each that failed ends, and no exception: one that is kept holds the frames it came through, the step's too.
Invariant: a sequence that failed takes no further part in the step, and leaves at its end: until then its rows are
run, since others may have found them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from decoding.core.step_result import Broken
from decoding.engine.fault import broken_by
from decoding.engine.scheduler import Scheduler
from decoding.engine.sequence import Sequence


class OfSequence(Protocol):
    """Something of one sequence's in the step."""

    @property
    def sequence(self) -> Sequence: ...


T = TypeVar("T", bound=OfSequence)
R = TypeVar("R")


class Isolation:
    """Of one step: `each` phase of it, then `retire_failed`."""

    def __init__(self) -> None:
        self._broken: dict[Sequence, Broken] = {}

    def each(self, items: Iterable[T], act: Callable[[T], R]) -> list[R]:
        """What `act` gives for every item, but those whose sequence has failed before, or does so now."""
        given = []
        for item in items:
            if item.sequence in self._broken:
                continue
            try:
                given.append(act(item))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic in llguidance is no Exception
                self._broken[item.sequence] = broken_by(item.sequence.request.id, error)
        return given

    def retire_failed(self, scheduler: Scheduler) -> list[Broken]:
        """Free what the failed ones hold; how each ends, but for those that had ended before they failed."""
        return [end for end in self._broken.values() if scheduler.retire(end.request_id) is not None]
