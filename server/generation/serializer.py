"""What the wire form of an endpoint's replies has to offer; each endpoint has its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from server.generation.choice import ChoiceDelta
from server.generation.events import FoldedChoice
from server.generation.usage import UsageCount
from server.http.errors import ApiError


class Serializer(Protocol):
    """The wire form of one endpoint's replies."""

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        """The events that tell of one delta."""

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        """The last events, after all deltas or at an error."""

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        """The plain reply."""
