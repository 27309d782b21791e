"""From requests to sequences: at once, or when the grammar of one is compiled, so that nobody waits for it.

Owns the requests whose grammar is being compiled. Knows nothing of steps or of how a grammar is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field

from decoding.core.grammar import Grammar
from decoding.core.request import Request
from decoding.core.step_result import Refused, StepResult
from decoding.drafting.drafting import Drafting
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.registry import StartDrafter
from decoding.engine.fault import broken_by
from decoding.engine.sequence import Sequence
from decoding.errors import RequestRejected
from decoding.sampling.grammar.compiler import Compiling
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.sampling.logits_processors import processors_of
from decoding.stores.session_store import SessionStore

Compile = Callable[[Grammar], Compiling]


@dataclass(frozen=True, slots=True)
class _Pending:
    """arrived: seconds on the monotonic clock."""

    request: Request
    start_drafter: StartDrafter | None
    grammar: Compiling
    arrived: float = field(default_factory=time.monotonic)


class Intake:
    """vocab_size: V of the logits; compile: returns at once."""

    def __init__(self, vocab_size: int, drafting: Drafting, sessions: SessionStore, compile: Compile) -> None:
        self._vocab_size = vocab_size
        self._drafting = drafting
        self._sessions = sessions
        self._compile = compile
        self._pending: dict[str, _Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def ids(self) -> Iterable[str]:
        """Of the requests whose grammar is being compiled."""
        return self._pending.keys()

    def take_on(self, request: Request, start_drafter: StartDrafter | None) -> Sequence | None:
        """The sequence of a request; None for one that has to wait for its grammar."""
        grammar = request.sampling.grammar
        if grammar is None:
            return self._sequence(request, start_drafter, None, time.monotonic())
        self._pending[request.id] = _Pending(request, start_drafter, self._compile(grammar))
        return None

    def take_ready(self, result: StepResult) -> list[Sequence]:
        """The sequences whose grammar is compiled by now; who cannot be run after all is in the result."""
        ready = []
        for pending in [each for each in self._pending.values() if each.grammar.done()]:
            request, grammar = self._pending.pop(pending.request.id).request, pending.grammar.result()
            if isinstance(grammar, RequestRejected):
                result.refused.append(Refused(request.id, grammar))
                continue
            try:
                ready.append(self._sequence(request, pending.start_drafter, grammar.new_matcher(), pending.arrived))
            except Exception as error:
                result.broken.append(broken_by(request.id, error))
        return ready

    def wait(self, seconds: float) -> None:
        """Until a grammar is compiled, at most so long."""
        wait([pending.grammar for pending in self._pending.values()], seconds, FIRST_COMPLETED)

    def drop(self, request_id: str) -> Request | None:
        """Give up a request; None if it is not here. Its grammar is compiled all the same: others may want it."""
        pending = self._pending.pop(request_id, None)
        return pending.request if pending else None

    def _sequence(
        self, request: Request, start_drafter: StartDrafter | None, matcher: GrammarMatcher | None, arrived: float
    ) -> Sequence:
        prediction = Prediction(request.prediction) if len(request.prediction) else None
        session = self._sessions.open(request.tenant, request.session_id)
        return Sequence(
            request=request,
            drafter=self._drafting.start(request, session, prediction, matcher, start_drafter),
            processors=processors_of(request, self._vocab_size, matcher),
            prediction=prediction,
            arrived=arrived,
        )
