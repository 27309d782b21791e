"""Measures several replies to one problem, one after the other or in one batch, as best-of-n and voting need them.

Owns the record of a timed reply with its answer. Knows nothing of tables. Invariant: the k-th reply to a problem has
the same seed with every contender, so methods that verify by matching give the same tokens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from decoding.bench.contestant import step
from decoding.core.events import Finished
from decoding.core.request import Request
from decoding.core.sampling_params import SamplingParams
from decoding.core.speculation_params import SpeculationParams
from decoding.drafting.drafter import Drafter
from decoding.drafting.registry import StartDrafter
from decoding.engine.engine import Engine
from decoding.stores.session import Session


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt, int32 [p], and its right answer, if it has one."""

    prompt: NDArray[np.int32]
    result: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A way of drafting. is_cold: each reply starts with empty stores.

    drafter: makes a drafter that is not in the registry, over stores that `new_stores` makes for each problem.
    """

    label: str
    speculation: SpeculationParams
    is_cold: bool = False
    drafter: Callable[[Request, Session], Drafter] | None = None
    new_stores: Callable[[], Session] | None = None


class Trajectory(msgspec.Struct, frozen=True, kw_only=True):
    """One reply. seconds: of the reply if it ran alone; in a batch, its share of the batch's seconds."""

    question: int
    tokens: int
    forwards: int
    drafted: int
    accepted: int
    seconds: float
    answer: int | None
    fingerprint: int


class Answering:
    """Runs questions on one engine at one temperature. read: finds the answer in a reply's text."""

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        max_tokens: int,
        temperature: float,
        read: Callable[[str], int | None],
    ) -> None:
        self._read = read
        self._engine = engine
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._num_sessions = 0

    def in_sequence(self, contender: Contender, number: int, question: Question, count: int) -> list[Trajectory]:
        """Measure `count` replies one after the other, in one session."""
        replies = []
        session, stores = self._open(contender)
        for index in range(count):
            if contender.is_cold:
                session, stores = self._open(contender)
            replies += self._run(number, [self._request(contender, number, question, index, session)], stores)
        return replies

    def side_by_side(self, contender: Contender, number: int, question: Question, count: int) -> list[Trajectory]:
        """Measure `count` replies in one batch, in one session."""
        session, stores = self._open(contender)
        requests = [self._request(contender, number, question, index, session) for index in range(count)]
        return self._run(number, requests, stores)

    def _open(self, contender: Contender) -> tuple[str, StartDrafter | None]:
        self._num_sessions += 1
        if contender.drafter is None or contender.new_stores is None:
            return f"{contender.label}-{self._num_sessions}", None
        make, stores = contender.drafter, contender.new_stores()
        return f"{contender.label}-{self._num_sessions}", lambda request, _sources: make(request, stores)

    def _request(self, contender: Contender, number: int, question: Question, index: int, session: str) -> Request:
        return Request(
            id=f"{session}-{number}-{index}",
            prompt=question.prompt,
            sampling=SamplingParams(
                max_tokens=self._max_tokens, temperature=self._temperature, seed=1000 * number + index
            ),
            speculation=contender.speculation,
            eos_token_ids=self._engine.model.eos_token_ids,
            session_id=session,
        )

    def _run(self, number: int, requests: Sequence[Request], make: StartDrafter | None) -> list[Trajectory]:
        started = time.perf_counter()
        for request in requests:
            self._engine.add(request, make)
        ended: dict[str, Finished] = {}
        while len(ended) < len(requests):
            ended |= {finished.request_id: finished for finished in step(self._engine).of(Finished)}
        seconds = (time.perf_counter() - started) / len(requests)
        return [self._record(number, request, ended[request.id], seconds) for request in requests]

    def _record(self, number: int, request: Request, finished: Finished, seconds: float) -> Trajectory:
        output = request.output
        return Trajectory(
            question=number,
            tokens=len(output),
            forwards=finished.stats.target_forwards,
            drafted=finished.stats.counts.drafted,
            accepted=finished.stats.counts.accepted,
            seconds=seconds,
            answer=self._read(self._tokenizer.decode(output.tolist())),
            fingerprint=crc32(output.tobytes()),
        )


def acceptance_length(replies: Sequence[Trajectory]) -> float:
    """Tokens per target forward over all replies."""
    return sum(reply.tokens for reply in replies) / sum(reply.forwards for reply in replies)


def tokens_per_second(replies: Sequence[Trajectory]) -> float:
    return sum(reply.tokens for reply in replies) / sum(reply.seconds for reply in replies)


def accuracy(replies: Sequence[Trajectory], questions: Sequence[Question]) -> float:
    """The share of replies with the right answer."""
    return sum(reply.answer == questions[reply.question].result for reply in replies) / len(replies)


def coverage(replies: Sequence[Trajectory], questions: Sequence[Question]) -> float:
    """pass@k: the share of questions to which any of their k replies has the right answer."""
    right = {reply.question for reply in replies if reply.answer == questions[reply.question].result}
    return len(right) / len({reply.question for reply in replies})


def majority_accuracy(replies: Sequence[Trajectory], questions: Sequence[Question]) -> float:
    """The share of questions whose most common answer is right; the earliest answer wins a tie."""
    by_question: dict[int, list[int]] = {reply.question: [] for reply in replies}
    for reply in replies:
        if reply.answer is not None:
            by_question[reply.question].append(reply.answer)
    right = 0
    for number, answers in by_question.items():
        right += bool(answers) and Counter(answers).most_common(1)[0][0] == questions[number].result
    return right / len(by_question)
