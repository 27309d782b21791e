"""POST /v1/completions: from a checked body to a streamed or a plain reply, both from the same deltas.

Owns the shape of completion replies; knows nothing of how tokens come about.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from decoding.stats import RequestStats
from server.errors import ApiError, internal_error, invalid
from server.events import Choice, ChoiceDelta, ChoicePlan, choice_deltas, fold
from server.plan import check_limits, plan_choices
from server.prompts import encode_prompts
from server.schemas import (
    Completion,
    CompletionChoice,
    CompletionRequest,
    ErrorReply,
    SpeculationReport,
    Usage,
)
from server.service import Service, service_of
from server.sse import DONE, KEEP_ALIVE, EventStream, frame, wait_for_disconnect

router = APIRouter()

SESSION_HEADER = "x-session-id"
VALID_SESSION = re.compile(r"[!-~]{1,128}")
CLIENT_LEFT = 499  # nobody reads it; it names the case in metrics and logs

T = TypeVar("T")
Deltas = AsyncGenerator[list[ChoiceDelta]]


@dataclass(frozen=True, slots=True)
class Call:
    """What every reply of one HTTP call repeats, and what its usage counts."""

    id: str
    created: int
    model: str
    fingerprint: str
    prompt_tokens: int
    body: CompletionRequest

    def reply(self, choices: list[CompletionChoice]) -> Completion:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }

    def choice(self, delta: ChoiceDelta, text: str) -> CompletionChoice:
        choice: CompletionChoice = {
            "index": delta.index,
            "text": text,
            "logprobs": None,
            "finish_reason": delta.finish_reason,
        }
        if self.body.speculation.report and delta.stats is not None:
            choice["speculation"] = speculation_report(delta.stats)
        return choice

    def usage(self, completion_tokens: int) -> Usage:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": self.prompt_tokens + completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
                "reasoning_tokens": 0,
            },
        }


@router.post(
    "/v1/completions",
    response_model=Completion,
    responses={status: {"model": ErrorReply} for status in (400, 404, 413, 429, 500, 503, "default")},
)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt, or several."""
    service = service_of(request)
    call, plans, choices = await _prepare(body, request, service)
    replies = service.client.submit([plan.request for plan in plans], service.settings.keep_alive_seconds)
    deltas = choice_deltas(replies, choices)
    if not body.stream:
        return await _plain(call, deltas, request)
    first = await _until_disconnect(anext(deltas), request)
    return EventStream(_frames(call, first, deltas, service.metrics.on_error))


async def _prepare(
    body: CompletionRequest, request: Request, service: Service
) -> tuple[Call, list[ChoicePlan], list[Choice]]:
    tokenizer, ready = service.require_ready()
    model = service.require_model(body.model)
    check_limits(body, service.settings, ready)
    session_id = body.session_id or request.headers.get(SESSION_HEADER, "local")
    if not VALID_SESSION.fullmatch(session_id):
        message = "A session id has 1 to 128 printable ASCII characters and no spaces."
        raise invalid(message, "session_id" if body.session_id else "X-Session-Id")
    prompts = await encode_prompts(tokenizer, body.prompt, ready.vocab_size)
    call_id = f"cmpl-{uuid.uuid4().hex}"
    plans = plan_choices(body, prompts, ready, call_id, session_id)
    prompt_tokens = sum(len(prompt.token_ids) for prompt in prompts)
    call = Call(call_id, int(time.time()), model, ready.fingerprint, prompt_tokens, body)
    return call, plans, [Choice(index, plan, tokenizer) for index, plan in enumerate(plans)]


async def _plain(call: Call, deltas: Deltas, request: Request) -> Response:
    folded = await _until_disconnect(fold(deltas), request)
    reply = call.reply([call.choice(choice.last, choice.text) for choice in folded])
    reply["usage"] = call.usage(sum(choice.last.num_tokens for choice in folded))
    return Response(msgspec.json.encode(reply), media_type="application/json")


async def _frames(
    call: Call, first: list[ChoiceDelta], deltas: Deltas, on_error: Callable[[ApiError], None]
) -> AsyncGenerator[bytes]:
    """The whole stream. An error after the first bytes is an event of its own."""
    options = call.body.stream_options
    num_tokens: dict[int, int] = {}
    async with aclosing(deltas):
        try:
            batch: list[ChoiceDelta] | None = first
            while batch is not None:
                for delta in batch:
                    num_tokens[delta.index] = delta.num_tokens
                    chunk = call.reply([call.choice(delta, delta.text)])
                    if options.include_usage:
                        chunk["usage"] = None
                    if options.continuous_usage_stats:
                        chunk["usage"] = call.usage(sum(num_tokens.values()))
                    yield frame(chunk)
                if not batch:
                    yield KEEP_ALIVE
                batch = await anext(deltas, None)
            if options.include_usage:
                yield frame(call.reply([]) | {"usage": call.usage(sum(num_tokens.values()))})
        except ApiError as error:
            on_error(error)
            yield frame(error.body())
        except Exception:
            yield frame(internal_error().body())
            raise
        yield DONE


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
