"""The events of a call: deltas of its choices, which a stream sends and a plain reply folds; and before the first of
them how far its prompts are.

Errors are raised as the ApiError that a client gets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from decoding.core.events import Failed, Finished, Rejected, Traced
from decoding.core.token_logprobs import TokenLogprobs
from decoding.errors import BrokenGrammar
from server.engine_client.replies import End, Expired, PromptRun, Replies
from server.generation.choice import Choice, ChoiceDelta, TokenNews
from server.http.errors import ApiError, internal_error, invalid, unavailable
from server.http.sse import KEEP_ALIVE
from server.http.work.turn import Turn
from server.parsing.parts import Part, merged
from server.schemas.replies import PromptProgress

Prompts = Mapping[int, PromptRun]  # how far the prompts are that run, by choice


async def choice_deltas(
    replies: Replies, choices: Sequence[Choice], every: float | None = None
) -> AsyncGenerator[list[ChoiceDelta]]:
    """All deltas of a call, step by step; an empty list where nothing came within the keep-alive time of `replies`.

    every: seconds between two lists once something has come; each then has all that came meanwhile, and may be empty.
    Raises ApiError as soon as one choice fails; closing the generator aborts the requests that still run.
    """
    loop, began = asyncio.get_running_loop(), None
    try:
        while not replies.is_finished:
            if every is None or began is None:
                news = await replies.read()
                began = loop.time() if news else None
            else:
                await asyncio.sleep(every - (loop.time() - began) % every)
                news = replies.take()
            deltas = []
            turn = Turn()
            for index, reply in news.items():
                choice = choices[index]
                was_cut = choice.is_cut
                delta = choice.feed(reply, require_finished(reply.end))
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


def progress_comment(prompts: Prompts) -> bytes:
    """The comment of a stream that is silent: the tokens of its prompts, processed and all, if some run."""
    if not prompts:
        return KEEP_ALIVE
    runs = prompts.values()
    return b": prompt %d/%d\n\n" % (sum(run.processed for run in runs), sum(run.total for run in runs))


def prompt_progress(run: PromptRun) -> PromptProgress:
    """What a chunk says of one prompt to those who ask."""
    milliseconds = round(run.seconds * 1e3)
    return {"total": run.total, "cache": run.cached, "processed": run.processed, "time_ms": milliseconds}


def require_finished(end: End | None) -> Finished | None:
    """The end, if there is one. Raises the ApiError of one that is not as it should be."""
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
