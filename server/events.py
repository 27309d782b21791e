"""The one event sequence of a call: choice deltas. Streaming sends them, a plain reply folds the same ones.

Owns the text of each choice, its stop strings and its count of tokens; knows nothing of HTTP. The invariant: the
deltas of a choice are a function of its tokens, not of how they were chunked, and the last one has the reason.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass

from decoding.messages import Failed, Finished, Rejected, Submit
from decoding.stats import RequestStats
from server.detokenize import IncrementalText, StopStrings
from server.errors import ApiError, internal_error, invalid, unavailable
from server.prompts import Tokenizer
from server.replies import End, Replies, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice before it runs: its request, the text to repeat before the reply, its stop strings."""

    request: Submit
    echo: str
    stops: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceDelta:
    """News of one choice. num_tokens: completion tokens so far; finish_reason and stats: in the last one only."""

    index: int
    text: str
    num_tokens: int
    finish_reason: str | None = None
    stats: RequestStats | None = None


class Choice:
    """Turns the replies of one request into deltas."""

    def __init__(self, index: int, plan: ChoicePlan, tokenizer: Tokenizer) -> None:
        self.index = index
        self._text = IncrementalText(tokenizer.decode, plan.request.prompt)
        self._stops = StopStrings(plan.stops)
        self._min_tokens = plan.request.sampling.min_tokens
        self._is_one_by_one = bool(plan.stops) or tokenizer.has_byte_tokens
        self._prefix = plan.echo
        self._num_tokens = 0
        self.is_cut = False  # by a stop string: what still comes is not the reply's

    def feed(self, reply: Reply) -> ChoiceDelta | None:
        """The delta of this reply, if there is anything to say. Raises ApiError where the request failed."""
        finished = _require_finished(reply.end)
        token_ids = [] if self.is_cut else reply.token_ids
        stop_token = None
        if finished is not None and finished.stop_token_id is not None and token_ids:
            assert token_ids[-1] == finished.stop_token_id, (token_ids, finished)
            stop_token = token_ids.pop()
        text = self._prefix + self._append(token_ids)
        self._prefix = ""
        if stop_token is not None and not self.is_cut:
            self._num_tokens += 1
        if finished is None:
            return ChoiceDelta(index=self.index, text=text, num_tokens=self._num_tokens) if text else None
        return self._last(text, finished)

    def _append(self, token_ids: Sequence[int]) -> str:
        if not self._is_one_by_one:
            self._num_tokens += len(token_ids)
            return self._text.push(token_ids) if token_ids else ""
        pieces = []
        for token_id in token_ids:
            self._num_tokens += 1
            pieces.append(self._settle(self._text.push((token_id,))))
            if self.is_cut:
                break
        return "".join(pieces)

    def _settle(self, text: str) -> str:
        if self._num_tokens < self._min_tokens:
            return text
        text, self.is_cut = self._stops.push(text)
        return text

    def _last(self, text: str, finished: Finished) -> ChoiceDelta:
        if not self.is_cut:
            text += self._settle(self._text.flush())
        if not self.is_cut:
            text += self._stops.flush()
        reason = "stop" if self.is_cut else finished.reason
        if reason == "abort":
            raise unavailable("The request was aborted.", "aborted")
        return ChoiceDelta(
            index=self.index,
            text=text,
            num_tokens=self._num_tokens,
            finish_reason=reason,
            stats=finished.stats,
        )


async def choice_deltas(replies: Replies, choices: Sequence[Choice]) -> AsyncGenerator[list[ChoiceDelta]]:
    """All news of a call, step by step; an empty list where nothing came for as long as `replies` is patient.

    Raises ApiError as soon as one choice fails; closing the iterator aborts what still runs.
    """
    try:
        while not replies.is_finished:
            news = await replies.read()
            deltas = []
            for index, reply in news.items():
                choice = choices[index]
                was_cut = choice.is_cut
                delta = choice.feed(reply)
                if choice.is_cut and not was_cut:
                    replies.abort(index)
                if delta is not None:
                    deltas.append(delta)
            if deltas or not news:
                yield deltas
    finally:
        replies.close()


@dataclass(slots=True)
class FoldedChoice:
    """A choice, whole."""

    text: str
    last: ChoiceDelta


async def fold(deltas: AsyncIterator[list[ChoiceDelta]]) -> list[FoldedChoice]:
    """Every choice of a call in the order of its index, from the same deltas a stream sends."""
    pieces: dict[int, list[ChoiceDelta]] = {}
    async for batch in deltas:
        for delta in batch:
            pieces.setdefault(delta.index, []).append(delta)
    return [FoldedChoice("".join(delta.text for delta in parts), parts[-1]) for _, parts in sorted(pieces.items())]


def _require_finished(end: End | None) -> Finished | None:
    if end is None or isinstance(end, Finished):
        return end
    if isinstance(end, Rejected):
        if end.code == "queue_full":
            raise ApiError(429, end.message, end.param, end.code, 1)
        raise invalid(end.message, end.param, end.code)
    if isinstance(end, Failed):
        raise internal_error()
    raise unavailable(end.message, end.code)
