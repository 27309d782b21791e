"""Copies of a worker's sessions, held for the process that comes after the present one.

Owns as many copies as there is room for; knows nothing of what is in them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from decoding.core.session_info import SessionState

MOST_BYTES = 256 * 2**20


class KeptSessions:
    """Has the sessions that changed last, of at most `most_bytes` together."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._num_bytes = 0
        self._states: OrderedDict[tuple[str, str], SessionState] = OrderedDict()

    def keep(self, state: SessionState) -> None:
        """Keep a copy, in the place of an earlier one of the same session."""
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
        """All copies, the least recently changed first."""
        return list(self._states.values())
