"""The deadlines of a call: one for its first token and one for its whole reply. Its requests end when one has passed,
and free what they hold by the next step.

Owns no timers: those belong to the call's replies and are cancelled with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from decoding.worker.calls import Submit
from server.engine_client.open_requests import OpenRequests
from server.engine_client.queue_gate import QueueGate
from server.engine_client.replies import Expired, Replies


class Deadlines:
    """`end` ends requests and has their worker give them up."""

    def __init__(self, requests: OpenRequests, gate: QueueGate, end: Callable[[Sequence[str], Expired], None]) -> None:
        self._requests = requests
        self._gate = gate
        self._end = end

    def set(self, replies: Replies, requests: Sequence[Submit], timeout: float | None, started: float) -> None:
        """Set the deadlines of one call. timeout is in seconds, for the whole call; started: by the loop's clock."""
        loop, ids = asyncio.get_running_loop(), [request.request_id for request in requests]
        queue_seconds = self._gate.limits.max_queue_seconds
        if queue_seconds is not None:
            replies.add_deadline(loop.call_at(started + queue_seconds, self._leave_queue, ids, requests[0].tenant))
        if timeout is not None:
            end = Expired(f"The request's timeout of {timeout:g} s is over.", "timeout", 504)
            replies.add_deadline(loop.call_at(started + timeout, self._end, ids, end))

    def _leave_queue(self, request_ids: Sequence[str], tenant: str) -> None:
        """End the requests of a call, unless one of them has begun: then the others wait for their own call alone."""
        if not self._requests.has_begun(request_ids):
            message = (
                f"The request has waited for {self._gate.limits.max_queue_seconds:g} s, the longest there is here."
            )
            retry_after = self._gate.retry_after(tenant, len(request_ids))
            self._end(request_ids, Expired(message, "queue_timeout", 408, retry_after))
