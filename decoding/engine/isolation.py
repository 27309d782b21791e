"""One step, in which what is raised for a sequence ends that sequence and no other.

A device that fails is nobody's fault and serves nobody any more: that is raised on, and another worker goes on with all
of them. Owns how each that failed ends, and no exception: one that is kept holds the frames it came through, too.
Invariant: a sequence that failed takes no further part in the step, and leaves at its end: until then its rows are
run, since others may have found them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from decoding.core.events import Failed
from decoding.engine.fault import failed_by
from decoding.engine.scheduler import Scheduler
from decoding.engine.sequence import Sequence
from decoding.engine.sequence_step import SequenceStep
from decoding.model.refusal import is_device_error


class Isolation:
    """Of one step: `each` phase of it, then `retire_failed`."""

    def __init__(self) -> None:
        self._broken: dict[Sequence, Failed] = {}

    def each(self, steps: Iterable[SequenceStep], act: Callable[[SequenceStep], None]) -> list[SequenceStep]:
        """Act on every step but those whose sequence has failed before; those that did not fail now either."""
        passed = []
        for step in steps:
            if step.sequence in self._broken:
                continue
            try:
                act(step)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic in llguidance is no Exception
                if is_device_error(error):
                    raise
                self._broken[step.sequence] = failed_by(step.sequence.request.id, error)
            else:
                passed.append(step)
        return passed

    def retire_failed(self, scheduler: Scheduler) -> list[Failed]:
        """Free what the failed ones hold; how each ends, but for those that had ended before they failed."""
        return [end for end in self._broken.values() if scheduler.retire(end.request_id) is not None]
