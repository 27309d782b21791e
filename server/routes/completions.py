"""POST /v1/completions: from a checked body to a streamed or a plain reply, both from the same deltas.

Owns the shape of completion replies; knows nothing of how tokens come about.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

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
    CompletionTokensDetails,
    ErrorReply,
    SpeculationReport,
    Usage,
)
from server.service import Service, service_of
from server.sse import DONE, KEEP_ALIVE, EventStream, error_frame, frame, wait_for_disconnect

router = APIRouter()

SESSION_HEADER = "x-session-id"
VALID_SESSION = re.compile(r"[!-~]{1,128}")
CLIENT_LEFT = 499  # nobody reads it; it names the case in metrics and logs

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

    def reply(self, choices: list[CompletionChoice], **extra: Any) -> Completion:
        return Completion(
            id=self.id,
            object="text_completion",
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            **extra,
        )

    def choice(self, delta: ChoiceDelta, text: str) -> CompletionChoice:
        reason: Any = delta.finish_reason
        shape = {"index": delta.index, "text": text, "logprobs": None, "finish_reason": reason}
        if self.body.speculation.report and delta.stats is not None:
            shape["speculation"] = speculation_report(delta.stats)
        return CompletionChoice(**shape)

    def usage(self, completion_tokens: int) -> Usage:
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self.prompt_tokens + completion_tokens,
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=0, rejected_prediction_tokens=0, reasoning_tokens=0
            ),
        )


@router.post(
    "/v1/completions",
    response_model=Completion,
    response_model_exclude_unset=True,
    responses={status: {"model": ErrorReply} for status in (400, 404, 413, 429, 500, 503)},
)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue a prompt, or several."""
    service = service_of(request)
    call, plans = await _prepare(body, request, service)
    replies = service.client.submit([plan.request for plan in plans])
    choices = _choices(plans, service)
    deltas = choice_deltas(replies, choices, service.settings.keep_alive_seconds)
    if not body.stream:
        return await _plain(call, deltas, request)
    first = await _until_disconnect(anext(deltas), request)
    return EventStream(_frames(call, first, deltas))


async def _prepare(
    body: CompletionRequest, request: Request, service: Service
) -> tuple[Call, list[ChoicePlan]]:
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
    return Call(call_id, int(time.time()), model, ready.fingerprint, prompt_tokens, body), plans


def _choices(plans: Sequence[ChoicePlan], service: Service) -> list[Choice]:
    tokenizer, _ = service.require_ready()
    return [Choice(index, plan, tokenizer) for index, plan in enumerate(plans)]


async def _plain(call: Call, deltas: Deltas, request: Request) -> Response:
    folded = await _until_disconnect(fold(deltas), request)
    reply = call.reply(
        [call.choice(choice.last, choice.text) for choice in folded],
        usage=call.usage(sum(choice.last.num_tokens for choice in folded)),
    )
    return Response(reply.model_dump_json(exclude_unset=True), media_type="application/json")


async def _frames(call: Call, first: list[ChoiceDelta], deltas: Deltas) -> AsyncGenerator[bytes]:
    """The whole stream. An error after the first bytes is an event of its own."""
    options = call.body.stream_options
    num_tokens: dict[int, int] = {}
    async with aclosing(deltas):
        try:
            batch: list[ChoiceDelta] | None = first
            while batch is not None:
                for delta in batch:
                    num_tokens[delta.index] = delta.num_tokens
                    extra: dict[str, Any] = {"usage": None} if options.include_usage else {}
                    if options.continuous_usage_stats:
                        extra["usage"] = call.usage(sum(num_tokens.values()))
                    yield frame(call.reply([call.choice(delta, delta.text)], **extra))
                if not batch:
                    yield KEEP_ALIVE
                batch = await anext(deltas, None)
            if options.include_usage:
                yield frame(call.reply([], usage=call.usage(sum(num_tokens.values()))))
        except ApiError as error:
            yield error_frame(error)
        except Exception:
            yield error_frame(internal_error())
            raise
        yield DONE


async def _until_disconnect[T](work: Any, request: Request) -> T:
    ...


def speculation_report(stats: RequestStats) -> SpeculationReport:
    """The raw counts of one choice, and τ: tokens per target forward, the prefill's own token left out."""
    forwards, counts = stats.target_forwards, stats.counts
    return SpeculationReport(
        method=stats.method,
        reason=stats.reason,
        steps=forwards,
        acceptance_length=(stats.emitted - 1) / forwards if forwards else None,
        drafts=counts.drafts,
        drafted=counts.drafted,
        accepted=counts.accepted,
        drafted_by_source=counts.drafted_by_source,
        accepted_by_source=counts.accepted_by_source,
        accepted_by_depth=counts.accepted_by_depth,
        prefill_chunks=stats.prefill_chunks,
        queue_seconds=stats.queue_seconds,
        time_to_first_token=stats.time_to_first_token,
        decode_seconds=stats.decode_seconds,
    )
