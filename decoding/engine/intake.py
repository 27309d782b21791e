"""From requests to sequences: at once, or when the grammar of one is compiled and its prompt's rows are read from
files, so that nobody else waits for these; and what an engine can never serve, or not now.

Owns the requests that wait for such. Knows nothing of steps, nor of how a grammar is compiled or rows are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from decoding.cache.batch import EmbeddedRows
from decoding.config import EngineConfig
from decoding.core.events import RequestEvent
from decoding.core.grammar import Grammar
from decoding.core.picture import Picture
from decoding.core.request import Request
from decoding.drafting import registry as drafters
from decoding.drafting.drafting import Drafting
from decoding.drafting.one_tree.prediction import Prediction
from decoding.drafting.registry import StartDrafter
from decoding.engine.fault import failed_by, rejected_by
from decoding.engine.limits import Limits
from decoding.engine.sequence import Sequence
from decoding.errors import RequestRejected
from decoding.model.memory import CacheRoom
from decoding.model.vision.seen import SeenPictures
from decoding.model.vision.tower import Tower
from decoding.sampling.grammar.compiler import Compiling
from decoding.sampling.grammar.matcher import GrammarMatcher
from decoding.sampling.logits_processors import processors_of
from decoding.sampling.token_lists import RecentLists
from decoding.stores.session_store import SessionStore

Compile = Callable[[Grammar], Compiling]


class RowSources(NamedTuple):
    """fetch: has rows of a prompt read from files, if any has them, and returns at once. pictures: has rows made of
    these; None where the model takes none."""

    fetch: Callable[[Request], Future[int] | None] = lambda _: None
    pictures: SeenPictures | None = None


@dataclass(frozen=True, slots=True)
class _Pending:
    """arrived: seconds on the monotonic clock."""

    request: Request
    start_drafter: StartDrafter | None
    grammar: Compiling | None
    reading: Future[int] | None
    seeing: Future[list[torch.Tensor]] | None
    arrived: float = field(default_factory=time.monotonic)

    @property
    def awaited(self) -> list[Future[Any]]:
        return [each for each in (self.grammar, self.reading, self.seeing) if each is not None and not each.done()]


class Intake:
    """vocab_size: V of the logits. compile: returns at once. pending: by id, the requests that wait for a grammar, or
    for rows."""

    def __init__(
        self,
        vocab_size: int,
        drafting: Drafting,
        sessions: SessionStore,
        compile: Compile,
        rows: RowSources = RowSources(),  # noqa: B008 - a tuple
    ) -> None:
        self._vocab_size = vocab_size
        self._drafting = drafting
        self._sessions = sessions
        self._compile = compile
        self._rows = rows
        self._lists = RecentLists(vocab_size)
        self.pending: dict[str, _Pending] = {}

    def take_on(self, request: Request, start_drafter: StartDrafter | None) -> Sequence | None:
        """The sequence of a request; None for one that has to wait for its grammar or rows. Raises RequestRejected for
        lists that hold ids of no vocabulary."""
        self._lists.of(request.sampling)
        grammar = None if request.sampling.grammar is None else self._compile(request.sampling.grammar)
        reading = self._rows.fetch(request)
        pictures = self._rows.pictures
        seeing = pictures.see(request.pictures) if request.pictures and pictures is not None else None
        pending = _Pending(request, start_drafter, grammar, reading, seeing)
        if grammar is None and reading is None and seeing is None:
            return self._sequence(pending, None)
        self.pending[request.id] = pending
        return None

    def take_ready(self, events: list[RequestEvent]) -> list[Sequence]:
        """The sequences that wait for nothing any more; the end of those that cannot be run after all is added to the
        events."""
        ready = []
        for pending in [each for each in self.pending.values() if not each.awaited]:
            request = self.pending.pop(pending.request.id).request
            grammar = None if pending.grammar is None else pending.grammar.result()
            if isinstance(grammar, RequestRejected):
                events.append(rejected_by(request.id, grammar))
                continue
            try:
                matcher = None if grammar is None else grammar.new_matcher()
                ready.append(self._sequence(pending, matcher))
            except Exception as error:
                events.append(failed_by(request.id, error))
        return ready

    def wait(self, seconds: float) -> None:
        """Until something is there that was awaited, at most so long."""
        wait([future for pending in self.pending.values() for future in pending.awaited], seconds, FIRST_COMPLETED)

    def drop(self, request_id: str) -> Request | None:
        """Give up a request; None if it is not here. Its grammar is compiled all the same: others may want it."""
        pending = self.pending.pop(request_id, None)
        return pending.request if pending else None

    def _sequence(self, pending: _Pending, matcher: GrammarMatcher | None) -> Sequence:
        """Raises what the tower raised, and ValueError for pictures that cannot have their positions."""
        request, tower = pending.request, None if self._rows.pictures is None else self._rows.pictures.tower
        pictures = () if pending.seeing is None else placed_rows(request.pictures, pending.seeing.result())
        prediction = Prediction(request.prediction) if len(request.prediction) else None
        session = self._sessions.open(request.tenant, request.session_id)
        return Sequence(
            request=request,
            drafter=self._drafting.start(request, session, prediction, matcher, pending.start_drafter),
            processors=processors_of(request, self._vocab_size, matcher, self._lists.of(request.sampling)),
            prediction=prediction,
            pictures=pictures,
            rotary=tower.rotary_positions(request.pictures) if tower and pictures else None,
            joint=tower.joint_spans(request.pictures) if tower else (),
            arrived=pending.arrived,
        )


def check_request(
    request: Request, config: EngineConfig, vocab_size: int, room: CacheRoom, gives_embeddings: bool
) -> None:
    """Raise RequestRejected, naming the field, for a request that can never be served."""
    if request.pooling is not None and not gives_embeddings:
        raise RequestRejected("this model gives no embeddings", param="model", code="no_embeddings")
    request.validate(vocab_size)
    drafters.check(request.speculation)
    max_nodes = request.speculation.max_nodes or 0
    if max_nodes > config.max_nodes:
        raise RequestRejected(
            f"speculation.max_nodes is {max_nodes}, this server allows {config.max_nodes}",
            param="speculation.max_nodes",
        )
    if request.max_total > room.max_model_len:
        raise RequestRejected(
            f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.sampling.max_tokens}, "
            f"together more than the {room.max_model_len} there is room for",
            param="prompt",
            code="context_length_exceeded",
        )


def placed_rows(pictures: Iterable[Picture], rows: Iterable[torch.Tensor]) -> tuple[EmbeddedRows, ...]:
    """The rows of each picture, [N, E], at their places in the prompt."""
    placed: list[EmbeddedRows] = []
    for picture, rows_NE in zip(pictures, rows, strict=True):
        parts = torch.split(rows_NE, [span.length for span in picture.spans])
        firsts = (span.first for span in picture.spans)
        placed += map(EmbeddedRows, firsts, parts)
    return tuple(placed)


def check_pictures(request: Request, tower: Tower | None, blindness: str | None, most_rows: int) -> None:
    """Raise RequestRejected for pictures that the model does not take, that do not stand where its prompt says, or that
    must be read in one step and do not fit. most_rows: of a step."""
    if not request.pictures:
        return
    if tower is None:
        raise RequestRejected(f"a picture cannot be read: {blindness}", param="messages", code="unsupported_content")
    places = np.concatenate([np.arange(span.first, span.end) for picture in request.pictures for span in picture.spans])
    is_ascending = bool((np.diff(places) > 0).all()) and places[0] >= 0
    if not is_ascending or places[-1] >= len(request.prompt) - 1:
        raise RequestRejected("a prompt must go on with text after its last picture", param="messages")
    is_marked = np.zeros(len(request.prompt), np.bool_)
    is_marked[places] = True
    if not np.array_equal(is_marked, request.prompt == tower.image_token_id):
        raise RequestRejected("the prompt has other places for pictures than those of its pictures", param="messages")
    longest = max((span.length for span in tower.joint_spans(request.pictures)), default=0)
    if longest > most_rows:
        message = (
            f"a picture has {longest} tokens, which this model reads in one step; one of this server has {most_rows}"
        )
        raise RequestRejected(message, param="messages")


def check_queue(request_id: str, is_open: bool, num_open: int, limits: Limits) -> None:
    """Raise RequestRejected for an id that has not ended yet, and for one more request than may be open."""
    if is_open:
        raise RequestRejected(f"a request with the id {request_id!r} has not ended yet", code="duplicate_request")
    if num_open >= limits.max_open:
        raise RequestRejected("the request queue is full", code="queue_full")
