"""What drafting remembered, held for the worker that comes after the present one.

Owns copies of sessions, as many as there is room for; knows nothing of what is in them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from decoding.core.session_info import SessionState

MOST_BYTES = 256 * 2**20


class KeptSessions:
    """Of the sessions that changed last, as far as `most_bytes` hold them."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._states: OrderedDict[tuple[str, str], SessionState] = OrderedDict()

    def keep(self, state: SessionState) -> None:
        """In the place of what was kept of the session before."""
        self.forget(state.tenant, state.session_id)
        self._states[state.tenant, state.session_id] = state
        self._num_bytes += state.num_bytes
        while self._num_bytes > self._most_bytes:
            self.forget(*next(iter(self._states)))

    def forget(self, tenant: str, session_id: str) -> None:
        state = self._states.pop((tenant, session_id), None)
        if state is not None:
            self._num_bytes -= state.num_bytes

    def get(self, tenant: str, session_id: str) -> SessionState | None:
        return self._states.get((tenant, session_id))

    def clear(self) -> None:
        self._states.clear()
        self._num_bytes = 0

    def states(self) -> Iterable[SessionState]:
        """The least recently changed first."""
        return list(self._states.values())
