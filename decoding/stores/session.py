"""What drafting remembers between the requests of one session.

Owns the session's stores and what its methods earned. Knows nothing of requests, nor how long it is kept.
Invariant: each store stays within `max_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from decoding.core.session_info import SessionState
from decoding.stores.acceptance_model import AcceptanceModel, arrays_of, below, is_sound, measured_models
from decoding.stores.ngram import NgramStore
from decoding.stores.suffixes import SuffixIndex

SESSION_TRIED, SESSION_TRUST = 512.0, 32.0  # observations that a chance rests on: at most, and at first
SESSION_LEARNING_RATE = 0.01
NUM_STORES = 2  # that are bounded, `ngrams` and `replies`
MODELS = ("greedy", "sampled")
KEY_BYTES, TOKEN_BYTES = 8, 4
NAMES = frozenset(("ngrams", "replies", *MODELS))


@dataclass(slots=True)
class Session:
    """What one session remembers: two stores and two acceptance models, each from its first use on; running requests
    hold on to them even after it left the `SessionStore`.

    max_bytes: of each store. server_models: of greedy and of sampled requests, shared by all sessions; this one's own
    begin with their view.
    """

    tenant: str
    id: str
    max_bytes: int
    server_models: tuple[AcceptanceModel, AcceptanceModel]
    last_used: float = 0.0
    _models: list[AcceptanceModel | None] = field(default_factory=lambda: [None, None], repr=False)
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

    def acceptance_models(self, is_sampled: bool) -> tuple[AcceptanceModel, AcceptanceModel]:
        """The session's and the server's, of requests of this kind."""
        server, own = self.server_models[is_sampled], self._models[is_sampled]
        if own is None:
            own = self._models[is_sampled] = below(server, SESSION_TRIED, SESSION_LEARNING_RATE, SESSION_TRUST)
        return own, server

    @property
    def store_bytes(self) -> dict[str, int]:
        """Bytes of each store in use, by its name."""
        stores = {"ngrams": self._ngrams, "replies": self._replies}
        return {name: store.num_bytes for name, store in stores.items() if store is not None}

    @property
    def num_bytes(self) -> int:
        return sum(self.store_bytes.values())

    def state(self) -> SessionState:
        """A copy of all that it holds."""
        stores = {name: [array.tobytes() for array in arrays] for name, arrays in self._arrays().items()}
        return SessionState(self.tenant, self.id, stores)

    def restore(self, state: SessionState, vocab_size: int) -> None:
        """Hold what a session of another process held, within the same bounds.

        The state may come from anyone: this is the one reader of files, imports and copies. To be called on a new
        session, which is of no use after ValueError, raised for what no session of this server and model can hold.
        """
        if not state.stores.keys() <= NAMES:
            raise ValueError("it has a store that no session has")
        if held := state.stores.get("ngrams"):  # sized by its first array, the keys
            self.ngrams.reserve(len(held[0]) // KEY_BYTES // 2)  # at most half of them are used
        if held := state.stores.get("replies"):  # sized by its first array, the tokens
            self.replies.reserve(len(held[0]) // TOKEN_BYTES)
        for is_sampled in (False, True):
            if state.stores.get(MODELS[is_sampled]):
                self.acceptance_models(is_sampled)
        arrays = self._arrays()
        for name, held in state.stores.items():
            if [len(each) for each in held] != [array.nbytes for array in arrays.get(name, ())] or not held:
                raise ValueError(f"its store '{name}' has not the arrays, or not the sizes, of a session here")
            for array, each in zip(arrays[name], held, strict=True):
                array[...] = np.frombuffer(each, array.dtype).reshape(array.shape)
        if not self._is_sound(vocab_size):
            raise ValueError("its numbers are not a session's")

    def _is_sound(self, vocab_size: int) -> bool:
        stores = [store for store in (self._ngrams, self._replies) if store is not None]
        models = [model for model in self._models if model is not None]
        return all(store.is_sound(vocab_size) for store in stores) and all(map(is_sound, models))

    def _arrays(self) -> dict[str, Sequence[NDArray[Any]]]:
        """Of each store in use."""
        stores = {"ngrams": self._ngrams, "replies": self._replies}
        arrays: dict[str, Sequence[NDArray[Any]]] = {
            name: store.arrays for name, store in stores.items() if store is not None
        }
        for name, model in zip(MODELS, self._models, strict=True):
            if model is not None:
                arrays[name] = arrays_of(model)
        return arrays


def lone_session(max_bytes: int) -> Session:
    """One of no server, for drafters that run without an engine."""
    return Session("", "", max_bytes, measured_models())
