"""When a worker's process is killed, and when and how often the next one is started. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from server.engine_client.processes.worker_process import Pulse

PATIENCE = 10  # a start, or one step of a large model, may take so many times the longest silence
STILL_PATIENCE = 100  # a load may stand still so many times as long, since it may wait for what others compile


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """A worker that served is replaced at once. One that dies before it is ready is tried again `attempts` times, after
    delays in seconds that double from first to longest. A worker is killed after worker_timeout seconds of silence.
    has_standby keeps a process that has imported everything and stands by."""

    attempts: int = 5
    first_delay: float = 0.25
    longest_delay: float = 30.0
    worker_timeout: float = 30.0
    has_standby: bool = False

    @property
    def start_seconds(self) -> float:
        """The longest that a start may take, and a step."""
        return PATIENCE * self.worker_timeout

    def delay(self, failures: int) -> float:
        return min(self.first_delay * 2.0 ** (failures - 1), self.longest_delay)

    def verdict(self, pulse: Pulse, silence: int, *, is_ready: bool) -> str | None:
        """What a process is killed for, as a clause, or None. silence: seconds since anything was heard of it."""
        longest, still = self.start_seconds, STILL_PATIENCE * self.worker_timeout
        if silence > (self.worker_timeout if is_ready else longest):
            return f"was killed: nothing was heard of it for {silence} s"
        if pulse.busy_seconds > longest:
            return f"was killed: its step took more than {longest:g} s"
        if not is_ready and pulse.still_seconds > still:
            return f"was killed: its load stood still for more than {still:g} s"
        return None
