"""`python -m tests.rerunning_shard`: a rank that captures forwards on the CPU, see `RerunningCapture`."""

from __future__ import annotations

import runpy
from collections.abc import Callable

BUCKETS = (1, 4, 8, 24)


class RerunningCapture:
    """A `Capture` on the CPU that keeps nothing: a replay runs the forward again, sums over ranks included."""

    def note(self, launch: Callable[[], None]) -> Callable[[], None]:
        launch()
        return launch

    def reserved_bytes(self) -> int:
        return 0


if __name__ == "__main__":
    from decoding.model.device import graph_runner
    from decoding.model.parallel import follower

    graph_runner.BUCKETS = BUCKETS
    follower.capture_on = lambda _device: RerunningCapture()
    runpy.run_module("decoding.worker.shard", run_name="__main__")
