"""One HTTP call from its plans to its answer: streamed or plain, both from the same deltas.

Owns the order of events, usage, errors inside a stream and clients that leave; the form of replies is the
endpoint's `Shape`.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response

from decoding.core.stats import RequestStats
from server.generation.choice import Choice, ChoiceDelta, ChoicePlan
from server.generation.events import FoldedChoice, choice_deltas, fold
from server.http.auth import caller_of
from server.http.errors import ApiError, internal_error, invalid
from server.http.sse import KEEP_ALIVE, EventStream, wait_for_disconnect
from server.metrics.metrics import Metrics
from server.prompts.tokenizer import Tokenizer
from server.schemas.replies import SpeculationReport, Usage
from server.service import Service

SESSION_HEADER = "x-session-id"
DEFAULT_SESSION = "local"
VALID_SESSION = re.compile(r"[!-~]{1,128}")
CLIENT_LEFT = 499  # nobody reads it; it names the case in metrics and logs

T = TypeVar("T")
Deltas = AsyncGenerator[list[ChoiceDelta]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What every reply of one HTTP call repeats. prompt_tokens counts every prompt once."""

    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    tokenizer: Tokenizer
    is_streamed: bool


class UsageCount:
    """Sums what the choices of a call have used so far."""

    def __init__(self, prompt_tokens: int) -> None:
        self._prompt_tokens = prompt_tokens
        self._last: dict[int, ChoiceDelta] = {}

    def add(self, delta: ChoiceDelta) -> None:
        self._last[delta.index] = delta

    def usage(self) -> Usage:
        last = self._last.values()
        stats = [delta.stats for delta in last if delta.stats is not None]
        completion_tokens = sum(delta.num_tokens for delta in last)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self._prompt_tokens + completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(each.accepted_prediction_tokens for each in stats),
                "rejected_prediction_tokens": sum(each.rejected_prediction_tokens for each in stats),
                "reasoning_tokens": sum(delta.num_reasoning for delta in last),
            },
        }


class Shape(Protocol):
    """The wire form of one endpoint's replies."""

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        """The events that tell of one delta."""

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        """The last events, after all deltas or at an error."""

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        """The plain reply."""


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    return int(time.time())


def session_of(request: Request, named: str | None) -> tuple[str, str]:
    """The caller's tenant and the session, by body, by header, or the caller's own. Raises ApiError for a bad name."""
    session_id = named or request.headers.get(SESSION_HEADER, DEFAULT_SESSION)
    if not VALID_SESSION.fullmatch(session_id):
        message = "A session id has 1 to 128 printable ASCII characters and no spaces."
        raise invalid(message, "session_id" if named else "X-Session-Id")
    return caller_of(request).tenant, session_id


async def answer(call: Call, plans: Sequence[ChoicePlan], shape: Shape, request: Request, service: Service) -> Response:
    """Run the plans. Raises ApiError for what goes wrong before the first byte."""
    choices = [Choice(index, plan, call.tokenizer) for index, plan in enumerate(plans)]
    replies = service.client.submit([plan.request for plan in plans], service.settings.keep_alive_seconds)
    deltas = choice_deltas(replies, choices)
    usage = UsageCount(call.prompt_tokens)
    if call.is_streamed:
        first = await _until_disconnect(anext(deltas), request)
        return EventStream(_frames(shape, first, deltas, usage, service.metrics))
    folded = await _until_disconnect(fold(deltas), request)
    for choice in folded:
        usage.add(choice.last)
    return Response(msgspec.json.encode(shape.whole(folded, usage)), media_type="application/json")


async def _frames(
    shape: Shape, first: list[ChoiceDelta], deltas: Deltas, usage: UsageCount, metrics: Metrics
) -> AsyncGenerator[bytes]:
    """The whole stream. An error after the first bytes is an event of its own."""
    outcome: UsageCount | ApiError = usage
    async with aclosing(deltas):
        try:
            batch: list[ChoiceDelta] | None = first
            while batch is not None:
                for delta in batch:
                    usage.add(delta)
                    for chunk in shape.chunks(delta, usage):
                        yield chunk
                if not batch:
                    yield KEEP_ALIVE
                batch = await anext(deltas, None)
        except ApiError as error:
            metrics.on_error(error)
            outcome = error
        except Exception:
            for chunk in shape.ending(internal_error()):
                yield chunk
            raise
        for chunk in shape.ending(outcome):
            yield chunk


async def _until_disconnect(work: Awaitable[T], request: Request) -> T:
    """The result of `work`, which is cancelled as soon as the client goes away; then raises ApiError."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        leaving.cancel()
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    if working.cancelled():
        raise ApiError(CLIENT_LEFT, "The client went away.", None, "client_left")
    return working.result()


def speculation_report(stats: RequestStats) -> SpeculationReport:
    """The raw counts of one choice, and τ: tokens per target forward."""
    forwards, counts = stats.target_forwards, stats.counts
    return {
        "method": stats.method,
        "choice": stats.choice,
        "reason": stats.reason,
        "steps_by_method": stats.steps_by_method,
        "steps": forwards,
        "acceptance_length": (stats.emitted - 1) / forwards if forwards else None,
        "drafts": counts.drafts,
        "drafted": counts.drafted,
        "accepted": counts.accepted,
        "drafted_by_source": counts.drafted_by_source,
        "accepted_by_source": counts.accepted_by_source,
        "accepted_by_depth": counts.accepted_by_depth,
        "prefill_chunks": stats.prefill_chunks,
        "queue_seconds": stats.queue_seconds,
        "time_to_first_token": stats.time_to_first_token,
        "decode_seconds": stats.decode_seconds,
        "draft_model_seconds": stats.draft_model_seconds,
    }
