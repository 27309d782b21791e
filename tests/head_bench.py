"""An engine whose draft model is a head: chains that are recorded, and replies that are held against plain ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from decoding.core.request import Request
from decoding.core.stats import RequestStats
from decoding.drafting.drafter import Drafter
from decoding.drafting.sources import Sources
from decoding.engine.engine import Engine
from tests.heads import Recorder
from tests.pairs import finish, request_of

# Of the tokens before a chain and the chain: for each of its tokens the best score there was, less its own.
Shortfalls = Callable[[NDArray[np.int32], list[int]], Iterator[float]]


class HeadedEngine:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.recorders: list[Recorder] = []

    def record(self, request: Request) -> Request:
        """Add a request whose chains are recorded."""

        def start(request: Request, sources: Sources) -> Drafter:
            self.recorders.append(Recorder(request, sources))
            return self.recorders[-1]

        self.engine.add(request, start)
        return request

    def num_checked_by(self, shortfalls: Shortfalls) -> tuple[int, int]:
        """How many steps drafted a chain, each of the likeliest tokens, and how many drafted nothing."""
        drafted = plain = 0
        for tokens, tree in (each for recorder in self.recorders for each in recorder.seen):
            if tree.num_drafted == 0:
                plain += 1
                continue
            drafted += 1
            for shortfall in shortfalls(tokens, tree.tokens[1:].tolist()):
                assert shortfall < 1e-3, (len(tokens), tree.tokens)
        self.recorders.clear()
        return drafted, plain

    def run(self, *requests: Request) -> dict[str, RequestStats]:
        for request in requests:
            self.engine.add(request)
        return finish(self.engine)[0]

    def assert_plain(self, *drafted: Request) -> dict[str, RequestStats]:
        """Run these, which get the tokens of plain decoding; what each cost."""
        plain = [request_of(f"plain {each.id}", each.prompt, each.sampling) for each in drafted]
        self.run(*plain)
        ended = self.run(*drafted)
        assert [each.output.tolist() for each in drafted] == [each.output.tolist() for each in plain]
        return ended


def assert_some_accepted_and_some_rejected(stats: Sequence[RequestStats]) -> None:
    drafted = sum(each.counts.drafted_by_source.get("draft_model", 0) for each in stats)
    accepted = sum(each.counts.accepted_by_source.get("draft_model", 0) for each in stats)
    assert 0 < accepted < drafted
