"""What drafting remembers: flat arrays behind small classes, compiled look-ups, no Python per token.

Knows nothing of requests or trees. Imports point from drafters to stores, never back.
"""

from __future__ import annotations

from typing import Protocol

from decoding.static_tree import StaticTree
from decoding.stores.adjacency import AdjacencyTable
from decoding.stores.ngram import NgramStore


class DraftingStores(Protocol):
    """The part of a session that drafters share across its requests."""

    @property
    def adjacency(self) -> AdjacencyTable: ...

    @property
    def ngrams(self) -> NgramStore: ...

    @property
    def tree(self) -> StaticTree | None:
        """The static tree the server was started with, if any."""
