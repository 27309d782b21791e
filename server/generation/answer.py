"""Runs a generation call and answers it, as a stream or in one piece, both from the same deltas.

Owns the order of events, errors inside a stream, and clients that disconnect. The endpoint's `Serializer` writes the
replies. Invariant: the event loop is never held for long, however large a reply is.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from server.engine_client.client import EngineClient
from server.engine_client.replies import Replies
from server.generation.call import GenerationCall
from server.generation.choice import Choice, ChoiceDelta
from server.generation.events import FoldedChoice, Prompts, choice_deltas, collect, folded
from server.generation.spans import traced
from server.generation.usage import UsageCount
from server.http.errors import ApiError, OnError, internal_error, naming
from server.http.notices import tell
from server.http.rate_limits import Allowance, allowance_of
from server.http.sse import EventStream, StreamForm, until_disconnect
from server.http.tracing import span_of
from server.http.work.turn import Turn
from server.http.work.work_pool import WorkPool
from server.parsing.json_text import loaded
from server.parsing.parts import Content
from server.parsing.schema_check import fits

FEW = 512  # tokens and log probabilities of a plain reply that is written on the event loop, in a millisecond or two

Deltas = AsyncGenerator[list[ChoiceDelta]]


class Serializer(Protocol):
    """Writes an endpoint's replies; each endpoint has its own. form: of its streams."""

    form: ClassVar[StreamForm]

    def chunks(self, delta: ChoiceDelta, usage: UsageCount) -> Iterable[bytes]:
        """The events for one delta."""

    def silence(self, prompts: Prompts) -> bytes:
        """What a stream gets where nothing came for a while. prompts: how far those are that run."""

    def ending(self, outcome: UsageCount | ApiError) -> Iterable[bytes]:
        """The last events, after all deltas or at an error."""

    def whole(self, choices: Sequence[FoldedChoice], usage: UsageCount) -> Mapping[str, object]:
        """The plain reply."""


async def answer(
    call: GenerationCall,
    serializer: Serializer,
    request: Request,
    client: EngineClient,
    pool: WorkPool,
    on_error: OnError,
) -> Response:
    """Run the call. Raises ApiError before the first byte; later errors go into the stream and to on_error."""
    choices = [Choice(index, plan, call.tokenizer) for index, plan in enumerate(call.plans)]
    usage = UsageCount(call.prompt_tokens, call.num_choices)
    allowance = allowance_of(request)
    with naming(call.names):
        if allowance is not None:
            allowance.take_prompt(call.prompt_tokens)
        try:
            replies = await client.submit([plan.request for plan in call.plans], call.timeout)
        except ApiError:
            if allowance is not None:
                allowance.give_back(call.prompt_tokens)
            raise
        deltas = choice_deltas(replies, choices, call.chunk_seconds)
        if allowance is not None:
            deltas = _counted(deltas, allowance)
        if (span := span_of(request)) is not None:
            deltas = traced(deltas, call, span)
        if call.is_streamed:
            first = await until_disconnect(request.receive, anext(deltas))
            frames = _frames(serializer, first, deltas, usage, replies, on_error)
            if call.chunk_seconds is not None:
                frames = _even(frames, serializer.form)
            return EventStream(frames, serializer.form.media_type)
        collected = await until_disconnect(request.receive, collect(deltas))

    def written() -> bytes:
        choices = [folded(each) for each in collected]
        for choice in choices:
            usage.add(choice.last)
        if call.loose_schema is not None:
            _tell_of_misfits(choices, call.loose_schema)
        return msgspec.json.encode(serializer.whole(choices, usage))

    is_small = sum(map(_num_told, collected)) <= FEW
    return Response(written() if is_small else await pool.run_beside(request, written), media_type="application/json")


def _tell_of_misfits(choices: Sequence[FoldedChoice], schema: Mapping[str, Any]) -> None:
    """Tell the client which choices do not fit their schema, of which a grammar could not enforce all."""
    for number, choice in enumerate(choices):
        text = "".join(part.text for part in choice.parts if isinstance(part, Content))
        if text and not fits(loaded(text), schema):
            tell(f"Choice {number} does not fit the schema.")


def _num_told(deltas: Sequence[ChoiceDelta]) -> int:
    """How many tokens and log probabilities a whole choice tells."""
    scored = [news.logprobs for delta in deltas for news in delta.news]
    scored += [entry for delta in deltas for entry in delta.prompt_logprobs or () if entry is not None]
    return deltas[-1].num_tokens + sum(1 + len(entry.top) for entry in scored)


async def _counted(deltas: Deltas, allowance: Allowance) -> Deltas:
    """The same deltas; their tokens are counted against the key's limit."""
    async with aclosing(deltas):
        async for batch in deltas:
            allowance.take_reply(sum(len(delta.token_ids) for delta in batch))
            yield batch


async def _frames(
    serializer: Serializer,
    first: list[ChoiceDelta],
    deltas: Deltas,
    usage: UsageCount,
    replies: Replies,
    on_error: OnError,
) -> AsyncGenerator[bytes]:
    """The bytes of the whole stream. An error after the first bytes becomes an event of its own."""
    outcome: UsageCount | ApiError = usage
    async with aclosing(deltas):
        try:
            batch: list[ChoiceDelta] | None = first
            while batch is not None:
                chunks: list[bytes] = []
                turn = Turn()
                for delta in batch:
                    usage.add(delta)
                    chunks += serializer.chunks(delta, usage)
                    await turn.share()
                yield b"".join(chunks) or serializer.silence(replies.prompts)
                batch = await anext(deltas, None)
        except ApiError as error:
            on_error(error)
            outcome = error
        except Exception:
            yield b"".join(serializer.ending(internal_error()))
            raise
        yield b"".join(serializer.ending(outcome))


async def _even(frames: AsyncGenerator[bytes], form: StreamForm) -> AsyncGenerator[bytes]:
    """The same frames, each padded."""
    async with aclosing(frames):
        async for data in frames:
            yield form.pad(data)
