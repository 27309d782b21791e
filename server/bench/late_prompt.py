"""Measures how a long prompt slows others: the gaps between running streams' events before it is sent and during its
prefill, and the first token of a short prompt that comes meanwhile.

Invariant: a gap counts as "during" if any of it lies between the prompt's sending and its first token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from statistics import mean
from typing import Any

from server.bench.call import Call
from server.bench.closed_loop import ClosedLoop
from server.bench.conversations import Conversation
from server.bench.errors import LatePromptError
from server.bench.measured_server import MeasuredServer
from server.bench.options import BenchOptions

SETTLED_EVENTS = 10  # events of each stream, on average, before the measurement begins
SECONDS_ALONE = 3.0  # before the prompt is sent, and after its first token
POLL_SECONDS = 0.01
SHORT_AFTER = 1.0  # seconds after the long prompt a short one comes
SHORT_LEN = 16  # its tokens


@dataclass(frozen=True, slots=True)
class LatePrompt:
    """Seconds from the prompt's sending to its first token; the same of the short prompt, None where that came too late
    to run beside it; the streams' gaps in seconds, pooled; and their characters a second during that time, and alone:
    before and after it, since a stream slows down as it grows."""

    time_to_first_token: float
    short_time_to_first_token: float | None
    gaps_before: Sequence[float]
    gaps_during: Sequence[float]
    rate_alone: float
    rate_during: float


async def measure_late_prompt(
    server: MeasuredServer,
    options: BenchOptions,
    conversations: Sequence[Conversation],
    streams: int,
    token_ids: Sequence[int],
) -> LatePrompt:
    """Start `streams` streams, send the prompt once they run, and close them. Raises LatePromptError."""
    loop = ClosedLoop(server, options)
    running = asyncio.ensure_future(loop.run(cycle(conversations), streams))
    late, short = Call(number=0), Call(number=0)
    try:
        while sum(len(call.times) for call in loop.calls) < streams * SETTLED_EVENTS:
            _check(loop.calls)
            if running.done():
                await running  # raises what ended it
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.sleep(SECONDS_ALONE)
        running_late = asyncio.ensure_future(server.stream(late, _body(token_ids)))
        await asyncio.wait([running_late], timeout=SHORT_AFTER)
        short_comes_beside = not running_late.done()
        if short_comes_beside:
            await server.stream(short, _body(token_ids[-SHORT_LEN:]))
        await running_late
        await asyncio.sleep(SECONDS_ALONE)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    _check([late, *([short] if short_comes_beside else []), *loop.calls])
    first = late.time_to_first_token
    if first is None:
        raise LatePromptError("the late prompt's first token was no text")
    end = late.sent + first
    gaps = split_gaps((call.times for call in loop.calls), late.sent, end)
    events = [event for call in loop.calls for event in zip(call.times, call.lengths, strict=True)]
    alone = [rate_between(events, late.sent - SECONDS_ALONE, late.sent), rate_between(events, end, end + SECONDS_ALONE)]
    return LatePrompt(first, short.time_to_first_token, *gaps, mean(alone), rate_between(events, late.sent, end))


def _body(token_ids: Sequence[int]) -> dict[str, Any]:
    return {"prompt": list(token_ids), "max_tokens": 1, "temperature": 0, "ignore_eos": True}


def split_gaps(times: Iterable[Sequence[float]], begin: float, end: float) -> tuple[list[float], list[float]]:
    """The gaps between each stream's events: those that end before `begin`, and those that overlap `begin` to `end`."""
    before: list[float] = []
    during: list[float] = []
    for stream in times:
        for left, right in pairwise(stream):
            if right <= begin:
                before.append(right - left)
            elif left < end:
                during.append(right - left)
    return before, during


def rate_between(events: Iterable[tuple[float, int]], begin: float, end: float) -> float:
    """The characters a second of events, each a time and its characters, that came after `begin`, up to `end`: an event
    may bring several tokens, so that their number tells nothing."""
    return sum(length for time, length in events if begin < time <= end) / (end - begin)


def _check(calls: Iterable[Call]) -> None:
    for call in calls:
        if call.error is not None:
            raise LatePromptError(call.error)
