"""The requests that have come to the worker and have not begun: keys take turns, so that nobody's many hold up another.

Invariant: a call is read when its first request begins, and never where all were aborted before.
"""

from __future__ import annotations

from dataclasses import dataclass

from decoding.worker.calls import Call, Choice, Shared, Submit, request_of_call, shared_of


@dataclass(slots=True)
class _Waiting:
    call: Call
    choices: dict[str, Choice]  # those that have not begun, by request id
    shared: Shared | None = None

    def take(self) -> Submit:
        self.shared = self.shared or shared_of(self.call)
        return request_of_call(self.call, self.shared, self.choices.pop(next(iter(self.choices))))


class Inbox:
    def __init__(self) -> None:
        self._by_tenant: dict[str, list[_Waiting]] = {}  # whose turn it is comes first
        self._by_id: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        """How many requests have not begun."""
        return len(self._by_id)

    def add(self, call: Call) -> None:
        waiting = _Waiting(call, {choice.request_id: choice for choice in call.choices})
        self._by_tenant.setdefault(call.tenant, []).append(waiting)
        self._by_id |= dict.fromkeys(waiting.choices, waiting)

    def drop(self, request_id: str) -> Choice | None:
        """Give up a request; None if it is not here."""
        waiting = self._by_id.pop(request_id, None)
        if waiting is None:
            return None
        choice = waiting.choices.pop(request_id)
        self._forget_if_over(waiting)
        return choice

    def take(self) -> Submit | None:
        """The next request to begin, of the key whose turn it is."""
        if not self._by_id:
            return None
        tenant = next(iter(self._by_tenant))
        calls = self._by_tenant[tenant] = self._by_tenant.pop(tenant)  # which goes to the end
        request = calls[0].take()
        self._forget_if_over(self._by_id.pop(request.request_id))
        return request

    def _forget_if_over(self, waiting: _Waiting) -> None:
        if not waiting.choices:
            tenant = waiting.call.tenant
            self._by_tenant[tenant].remove(waiting)
            if not self._by_tenant[tenant]:
                del self._by_tenant[tenant]
