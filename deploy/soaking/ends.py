"""How a request ended, as its client saw it: with a whole reply, with an allowed error, or by the client's disconnect.

Invariant: every request has one end, and any other end is a fault.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from deploy.soaking.bodies import Ask
from server.bench.connection import Address

WHOLE, REFUSED, UNAVAILABLE, LEFT, FAULT = "whole", "refused", "unavailable", "client left", "fault"
NO_WORKER = frozenset({"engine_restarting", "engine_silent", "engine_loading", "queue_full"})
PATIENCE = 240.0  # seconds for one request, restarts included
SHOWN = 200  # characters of a fault that are printed


@dataclass(slots=True)
class Reply:
    """What a client received for one request. times: `time.perf_counter` of each piece with events."""

    status: int = 0
    data: bytes = b""
    times: list[float] = field(default_factory=list)

    def take(self, piece: bytes) -> None:
        self.data += piece
        if b"data:" in piece:  # not a keep-alive comment
            self.times.append(time.perf_counter())

    @property
    def gaps(self) -> list[float]:
        """Seconds between pieces, of which each has the tokens of a step."""
        return [after - before for before, after in pairwise(self.times)]

    @property
    def is_stream(self) -> bool:
        return self.data.startswith((b"data:", b":"))

    def events(self) -> list[dict[str, Any]]:
        """The events of a stream that has ended. Raises ValueError where it did not end as streams do."""
        frames = [frame for frame in self.data.split(b"\n\n") if frame and not frame.startswith(b":")]
        if not frames or frames[-1] != b"data: [DONE]" or frames.count(b"data: [DONE]") != 1:
            raise ValueError("the stream does not end with one [DONE]")
        return [json.loads(frame.removeprefix(b"data:")) for frame in frames[:-1]]


@dataclass(frozen=True, slots=True)
class End:
    """kind: one of those above; text: the whole stream's; sentence: what the fault was."""

    kind: str
    text: str = ""
    sentence: str = ""


async def ask(address: Address, asked: Ask, leave_after: float | None = None) -> tuple[End, Reply]:
    """Send one request and return how it ended. leave_after: seconds after which the client closes the connection."""
    reply = Reply()
    try:
        async with asyncio.timeout(leave_after or PATIENCE):
            reply.status = await address.exchange("POST", asked.path, asked.body, reply.take)
    except TimeoutError:
        if leave_after is not None:
            return End(LEFT), reply
        return End(FAULT, sentence=f"no end within {PATIENCE:g} s"), reply
    except OSError as error:
        return End(FAULT, sentence=str(error)), reply
    try:
        return end_of(asked, reply), reply
    except (ValueError, KeyError, IndexError, TypeError) as error:
        return End(FAULT, sentence=f"{error!r} in {reply.data[-SHOWN:]!r}"), reply


def end_of(asked: Ask, reply: Reply) -> End:
    """How a reply ended. Raises what the parser raises where the reply is malformed."""
    if not reply.is_stream:
        return _end_of_object(asked, reply.status, json.loads(reply.data))
    events = reply.events()
    errors = [event for event in events if "error" in event]
    reasons = [reason for event in events for choice in event.get("choices", ()) if (reason := choice["finish_reason"])]
    if errors:
        return (
            _end_of_object(asked, 400, errors[-1]) if len(errors) == 1 and not reasons else End(FAULT, "", "two ends")
        )
    if len(reasons) != 1:
        return End(FAULT, sentence=f"{len(reasons)} reasons to end")
    return End(WHOLE, "".join(choice["text"] for event in events for choice in event["choices"]))


def _end_of_object(asked: Ask, status: int, body: Mapping[str, Any]) -> End:
    if status == 200:
        return End(WHOLE)
    code = body["error"]["code"]
    if code in asked.codes:
        return End(REFUSED)
    if code in NO_WORKER:
        return End(UNAVAILABLE)
    return End(FAULT, sentence=f"{status} {code}: {body['error']['message']}"[:SHOWN])
