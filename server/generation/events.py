"""The events of a call: deltas of its choices. A stream sends them, and a plain reply folds the same ones.

Errors are raised as the ApiError that a client gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from decoding.core.events import Failed, Finished, Rejected, Traced
from decoding.core.token_logprobs import TokenLogprobs
from decoding.errors import BrokenGrammar
from server.engine_client.replies import End, Expired, Replies
from server.generation.choice import Choice, ChoiceDelta, TokenNews
from server.http.errors import ApiError, internal_error, invalid, unavailable
from server.http.work.turn import Turn
from server.parsing.parts import Part, merged


async def choice_deltas(
    replies: Replies, choices: Sequence[Choice], every: float | None = None
) -> AsyncGenerator[list[ChoiceDelta]]:
    """All deltas of a call, step by step; an empty list where nothing came within the keep-alive time of `replies`.

    every: seconds between two lists after the first; each then has all that came meanwhile, and may be empty. Raises
    ApiError as soon as one choice fails; closing the generator aborts the requests that still run.
    """
    loop, began = asyncio.get_running_loop(), None
    try:
        while not replies.is_finished:
            if every is None or began is None:
                news, began = await replies.read(), loop.time()
            else:
                await asyncio.sleep(every - (loop.time() - began) % every)
                news = replies.take()
            deltas = []
            turn = Turn()
            for index, reply in news.items():
                choice = choices[index]
                was_cut = choice.is_cut
                delta = choice.feed(reply, _require_finished(reply.end))
                if choice.is_cut and not was_cut:
                    replies.abort(index)
                if delta is not None:
                    deltas.append(delta)
                await turn.share()
            if deltas or not news or every is not None:
                yield deltas
    finally:
        replies.close()


@dataclass(slots=True)
class FoldedChoice:
    """A whole choice: all of its deltas joined."""

    parts: tuple[Part, ...]
    token_ids: list[int]
    news: list[TokenNews]
    steps: list[Traced]
    prompt_logprobs: Sequence[TokenLogprobs | None] | None
    last: ChoiceDelta


async def collect(deltas: AsyncIterator[list[ChoiceDelta]]) -> list[list[ChoiceDelta]]:
    """The deltas that a stream would send, choice by choice in the order of their indices."""
    pieces: dict[int, list[ChoiceDelta]] = {}
    async for batch in deltas:
        for delta in batch:
            pieces.setdefault(delta.index, []).append(delta)
    return [each for _, each in sorted(pieces.items())]


def folded(deltas: Sequence[ChoiceDelta]) -> FoldedChoice:
    return FoldedChoice(
        parts=merged(part for delta in deltas for part in delta.parts),
        token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
        news=[news for delta in deltas for news in delta.news],
        steps=[step for delta in deltas for step in delta.steps],
        prompt_logprobs=next((delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None), None),
        last=deltas[-1],
    )


def _require_finished(end: End | None) -> Finished | None:
    if end is None or isinstance(end, Finished):
        return end
    if isinstance(end, Rejected):
        if end.code == "queue_full":
            raise ApiError(429, end.message, end.param, end.code, 1)
        if end.code == "grammar_unavailable":
            raise unavailable(end.message, end.code)
        raise invalid(end.message, end.param, end.code)
    if isinstance(end, Failed):
        status = 400 if end.code == BrokenGrammar.code else 500
        raise internal_error() if end.code is None else ApiError(status, end.message, None, end.code)
    if isinstance(end, Expired):
        raise ApiError(end.status, end.message, None, end.code, end.retry_after)
    raise unavailable(end.message, end.code)
