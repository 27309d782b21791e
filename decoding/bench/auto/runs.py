"""One run: concurrent users, each of whom sends a script's turns one after the other in a session of their own.

Owns the closed loop and its clock. Invariant: every method gets the same requests and must give the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple
from zlib import crc32

from decoding.bench.comparison import AGAIN
from decoding.bench.contestant import Task, request_of, step
from decoding.bench.counts import Counts
from decoding.bench.scripts import Script, Tokens, prompt_of
from decoding.bench.variant import NONE
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.speculation_params import SpeculationParams
from decoding.engine.engine import Engine

_SEEDS = 1000  # seeds of one user
_NUMBERS = count()  # numbers of runs, so that no two runs share a session


class Setting(NamedTuple):
    """The setting of a run. target: its name. at_once: concurrent users."""

    target: str
    workload: str
    temperature: float
    at_once: int


class Run(Counts, frozen=True, kw_only=True):
    """Sums over all users' replies. first_rate: tokens a second of the first replies, before which sessions are empty.
    fingerprint: of the tokens."""

    method: str
    seconds: float
    first_rate: float
    fingerprint: int

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


@dataclass(slots=True)
class _User:
    """One user. number: the user's. session: its own. replies: so far."""

    script: Script
    number: int
    session: str
    most: int
    asked: Task | None = None
    before: list[Tokens] = field(default_factory=list)
    replies: list[Tokens] = field(default_factory=list)

    def next_task(self, temperature: float) -> Task | None:
        """The user's next task; None after the last turn."""
        if len(self.replies) == len(self.script.turns):
            return None
        turn = self.script.turns[len(self.replies)]
        self.asked = Task(
            prompt=prompt_of(turn, self.before, self.most),
            max_tokens=self.script.max_tokens,
            temperature=temperature,
            seed=turn.seed + _SEEDS * self.number,
            ignore_eos=self.script.ignore_eos,
            prediction=turn.prediction,
        )
        return self.asked

    def take(self, reply: Tokens) -> None:
        assert self.asked is not None
        self.replies.append(reply)
        self.before = [self.asked.prompt, reply]


def measure_run(
    engine: Engine, script: Script, temperature: float, at_once: int, method: str, clock: Callable[[], float]
) -> Run:
    """Run until every user has the last reply. method: a registered one, or `none, again`."""
    speculation = SpeculationParams(method=NONE if method == AGAIN else method)
    most, number = engine.model.max_model_len - script.max_tokens, next(_NUMBERS)
    users = [_User(script, place, f"{number}-{place}", most) for place in range(at_once)]
    running: dict[str, tuple[_User, Request]] = {}

    def ask(user: _User) -> None:
        task = user.next_task(temperature)
        if task is not None:
            request = request_of(task, f"{user.session}-{len(user.replies)}", user.session, speculation, engine)
            running[request.id] = user, request
            engine.add(request)

    forwards = drafted = 0
    first_rate, started = 0.0, clock()
    for user in users:
        ask(user)
    while running:
        for finished in step(engine).of(Finished):
            user, request = running.pop(finished.request_id)
            user.take(request.output.copy())
            forwards += finished.stats.target_forwards
            drafted += finished.stats.counts.drafted
            first_rate = first_rate or len(request.output) / (clock() - started)
            ask(user)
    seconds = clock() - started
    return Run(
        method=method,
        tokens=sum(len(reply) for user in users for reply in user.replies),
        forwards=forwards,
        drafted=drafted,
        seconds=seconds,
        first_rate=first_rate,
        fingerprint=crc32(b"".join(reply.tobytes() for user in users for reply in user.replies)),
    )
