"""What drafting remembers between the requests of one session.

Owns the session's stores and what its methods earned. Knows nothing of requests, nor how long it is kept.
Invariant: each store stays within `max_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.earnings import Ledger
from decoding.stores.ngram import NgramStore
from decoding.stores.suffixes import SuffixIndex


@dataclass(slots=True)
class Session:
    """The stores of one session; running requests hold on to it even after it left the `SessionStore`.

    max_bytes: of each store. A store exists from its first use on. earnings: of greedy and of sampled requests.
    """

    tenant: str
    id: str
    max_bytes: int
    adjacency: AdjacencyTable
    last_used: float = 0.0
    earnings: tuple[Ledger, Ledger] = field(default_factory=lambda: (Ledger(), Ledger()))
    _ngrams: NgramStore | None = field(default=None, repr=False)
    _replies: SuffixIndex | None = field(default=None, repr=False)

    @property
    def ngrams(self) -> NgramStore:
        if self._ngrams is None:
            self._ngrams = NgramStore(self.max_bytes)
        return self._ngrams

    @property
    def replies(self) -> SuffixIndex:
        if self._replies is None:
            self._replies = SuffixIndex(self.max_bytes)
        return self._replies

    def ledger(self, is_sampled: bool) -> Ledger:
        """What methods earned in requests of this kind."""
        return self.earnings[is_sampled]

    @property
    def store_bytes(self) -> dict[str, int]:
        """Bytes of each store in use, by its name."""
        others = {"ngrams": self._ngrams, "replies": self._replies}
        used = {name: store.num_bytes for name, store in others.items() if store is not None}
        return {"adjacency": self.adjacency.num_bytes, **used}

    @property
    def num_bytes(self) -> int:
        return sum(self.store_bytes.values())
