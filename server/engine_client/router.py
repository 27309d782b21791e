"""The choice of the worker that runs a call: the one that has its session, or most of its prompt, unless it is too
busy.

Pure: it is told how much is open and asked for a number. It remembers what each worker was given, which may no longer
be there; only speed depends on that. The bound is that of consistent hashing with bounded loads (Mirrokni et al., 2018,
https://arxiv.org/abs/1608.01350), with memory in the place of hashes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping
from itertools import takewhile
from typing import TypeVar

from decoding.worker.calls import Submit
from server.http.sender import DEFAULT_SESSION

BOUND = 1.25  # a worker that knows the session or prompt is chosen while it has at most so many times the mean load
PIECE_LEN = 64  # tokens of a prompt that are remembered together
MOST_PIECES = 256  # of one prompt that are remembered
MOST_KNOWN = 32768  # pieces of prompts remembered of one worker, and sessions of all

K = TypeVar("K")
V = TypeVar("V")


class Router:
    def __init__(self, num_workers: int) -> None:
        self._pieces: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(num_workers)]
        self._num_calls = [0] * num_workers
        self._homes: OrderedDict[tuple[str, str], int] = OrderedDict()  # of sessions

    def home(self, tenant: str, session_id: str) -> int | None:
        """The worker of a session's last call. Requests that name no session have no home."""
        return self._homes.get((tenant, session_id))

    def settle(self, tenant: str, session_id: str, worker: int) -> None:
        """Make this worker the home of a session."""
        if session_id != DEFAULT_SESSION:
            _remember(self._homes, (tenant, session_id), worker)

    def forget(self, worker: int) -> None:
        """Note that a worker's cache is empty."""
        self._pieces[worker].clear()

    def pick(self, request: Submit, num_requests: int, loads: Mapping[int, int]) -> int:
        """Choose the worker of a call of so many requests, of which this is one. loads has the number of open requests
        of each worker that there is."""
        pieces, home = _pieces_of(request), self.home(request.tenant, request.session_id)
        most = math.ceil(BOUND * (sum(loads.values()) + num_requests) / len(loads))
        most = max(most, min(loads.values()) + num_requests)

        def merit(worker: int) -> tuple[int, ...]:
            num_known = sum(1 for _ in takewhile(self._pieces[worker].__contains__, pieces))
            return worker == home, num_known, -loads[worker], -self._num_calls[worker]

        worker = max((each for each, load in loads.items() if load + num_requests <= most), key=merit)
        for piece in pieces:
            _remember(self._pieces[worker], piece, None)
        self._num_calls[worker] += 1
        self.settle(request.tenant, request.session_id, worker)
        return worker


def _pieces_of(request: Submit) -> list[int]:
    """A hash of each whole piece of the prompt with all before it, as a cache of prompts shares pieces from the start
    on."""
    before = hash((request.tenant, request.cache_salt))
    pieces = []
    for end in range(PIECE_LEN, min(len(request.prompt), MOST_PIECES * PIECE_LEN) + 1, PIECE_LEN):
        before = hash((before, *request.prompt[end - PIECE_LEN : end]))
        pieces.append(before)
    return pieces


def _remember(memory: OrderedDict[K, V], key: K, value: V) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > MOST_KNOWN:
        memory.popitem(last=False)
