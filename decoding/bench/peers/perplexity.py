"""How likely each engine thinks the same text, in windows that begin from an empty cache.

Knows nothing of files or tables. Invariant: a score counts every window, or its engine is left out with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp

import msgspec

from decoding.bench.peers.peer_process import PeerFailed, PeerProcess


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's. nats: the sum over `num_tokens` scored tokens, which are all but a window's first."""

    peer: str
    version: str
    nats: float
    num_tokens: int

    @property
    def perplexity(self) -> float:
        return exp(self.nats / self.num_tokens)


def score(
    peers: dict[str, PeerProcess], windows: Sequence[list[int]], on_window: Callable[[], object]
) -> tuple[list[Score], list[str]]:
    """The scores of all peers, and a sentence for each that fails."""
    nats, failures = dict.fromkeys(peers, 0.0), dict[str, str]()
    for window in windows:
        for peer in [name for name in peers if name not in failures]:
            try:
                nats[peer] += peers[peer].nats(window)
            except PeerFailed as error:
                failures[peer] = f"{peer} is left out: {error}"
        on_window()
    num_tokens = sum(len(window) - 1 for window in windows)
    found = [
        Score(peer=peer, version=process.hello.version, nats=nats[peer], num_tokens=num_tokens)
        for peer, process in peers.items()
        if peer not in failures
    ]
    return found, list(failures.values())
