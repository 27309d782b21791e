"""A closed loop: a fixed number of clients, each of which sends its next request as soon as it has its reply.

Owns the calls of one run and the order of their conversations; failed calls are kept like others. Invariant: there are
never more open calls than clients.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from server.bench.call import Call
from server.bench.conversations import Conversation, Message, text_of
from server.bench.measured_server import MeasuredServer
from server.bench.options import BenchOptions

CALLS_PER_SAMPLE = 1000


@dataclass(frozen=True, slots=True)
class MemorySample:
    """The server's resident bytes after `num_calls` calls of a run; None where it does not report them."""

    num_calls: int
    resident_bytes: int | None


@dataclass(frozen=True, slots=True)
class Run:
    """All calls of one run, in the order they were sent, and its seconds from first to last."""

    calls: Sequence[Call]
    seconds: float
    memory: Sequence[MemorySample]


class ClosedLoop:
    """One run on one server. on_call: a function called after each call."""

    def __init__(
        self, server: MeasuredServer, options: BenchOptions, on_call: Callable[[], None] = lambda: None
    ) -> None:
        self.calls: list[Call] = []
        self._server = server
        self._options = options
        self._on_call = on_call
        self._num_ended = 0
        self._memory: list[MemorySample] = []

    async def run(self, conversations: Iterable[Conversation], clients: int) -> Run:
        """Run all conversations, `clients` at a time."""
        waiting = iter(conversations)
        await self._sample_memory()
        started = time.perf_counter()
        await asyncio.gather(*(self._client(waiting) for _ in range(clients)))
        seconds = time.perf_counter() - started
        if self._memory[-1].num_calls < self._num_ended:
            await self._sample_memory()
        return Run(self.calls, seconds, self._memory)

    async def _client(self, waiting: Iterator[Conversation]) -> None:
        for conversation in waiting:
            await self._converse(conversation)

    async def _converse(self, conversation: Conversation) -> None:
        """Run all turns, each with everything said before; a failed call ends the conversation."""
        messages = list(conversation.opening)
        for turn in range(1, len(conversation.turns) + 1):
            messages.append(conversation.message(turn))
            call = Call(conversation.number, turn)
            self.calls.append(call)
            body = body_of(messages, conversation.number, self._options)
            if conversation.token_ids:
                body["prompt"] = conversation.token_ids
            await self._server.stream(call, body)
            self._num_ended += 1
            self._on_call()
            if self._num_ended % CALLS_PER_SAMPLE == 0:
                await self._sample_memory()
            if call.error is not None:
                return
            messages.append({"role": "assistant", "content": call.content})

    async def _sample_memory(self) -> None:
        num_calls = self._num_ended
        self._memory.append(MemorySample(num_calls, await self._server.resident_bytes()))


def body_of(messages: Sequence[Message], number: int, options: BenchOptions) -> dict[str, Any]:
    """The body of one call in the conversation `number`. A completion's prompt is all that the messages say."""
    body: dict[str, Any] = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "seed": options.seed + number,
    }
    if options.ignore_eos:
        body["ignore_eos"] = True
    if options.endpoint == "chat":
        return body | {"messages": messages}
    return body | {"prompt": text_of(messages)}
