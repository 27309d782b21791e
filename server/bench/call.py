"""One streamed call: when its text came, and the usage that the server reported.

Parses server-sent events of chats and completions; knows nothing of connections. Invariant: `times` has an entry for
each event that brought text, in order, in seconds of `time.perf_counter`, and `lengths` its characters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

SHOWN_ERROR = 300  # characters


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None


class _Chunk(msgspec.Struct):
    choices: Sequence[_Choice] = ()
    usage: _Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Chunk)


@dataclass(slots=True)
class Call:
    """number: its conversation's; turn: from 1; cached_tokens: prompt tokens from the cache, None where the server does
    not say; error: a sentence, None where the whole reply came."""

    number: int
    turn: int = 1
    sent: float = 0.0
    times: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    content: str = ""
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    completion_tokens: int = 0
    error: str | None = None
    _rest: bytes = b""
    _is_done: bool = False

    def feed(self, data: bytes) -> None:
        """Read bytes of the stream that have just arrived."""
        now = time.perf_counter()
        *events, self._rest = (self._rest + data).replace(b"\r\n", b"\n").split(b"\n\n")
        for event in events:
            for line in event.split(b"\n"):
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), now)

    def finish(self, status: int) -> None:
        """The reply has ended with this status."""
        if status != 200:
            self.error = f"status {status}: {self._rest.decode(errors='replace')[:SHOWN_ERROR]}"
        elif not self._is_done and self.error is None:
            self.error = "the stream ended without [DONE]"

    def _take(self, payload: bytes, now: float) -> None:
        if payload == b"[DONE]":
            self._is_done = True
            return
        chunk = _DECODER.decode(payload)
        if chunk.error is not None:
            self.error = f"error in the stream: {chunk.error}"[:SHOWN_ERROR]
        piece = "".join(_text(choice) for choice in chunk.choices)
        if piece:
            self.times.append(now)
            self.lengths.append(len(piece))
            self.content += "".join(_said(choice) for choice in chunk.choices)
        if chunk.usage is not None:
            self.prompt_tokens, self.completion_tokens = chunk.usage.prompt_tokens, chunk.usage.completion_tokens
            details = chunk.usage.prompt_tokens_details
            self.cached_tokens = None if details is None else details.cached_tokens

    @property
    def time_to_first_token(self) -> float | None:
        """TTFT: seconds from sending, connecting included, to the first text; None where none came."""
        return self.times[0] - self.sent if self.times else None

    @property
    def time_per_output_token(self) -> float | None:
        """TPOT: seconds after the first text, divided by the tokens after the first; None for less than two tokens."""
        if not self.times or self.completion_tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.completion_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Inter-token latencies: seconds between events with text, of which each may bring several tokens."""
        return [after - before for before, after in pairwise(self.times)]


def _said(choice: _Choice) -> str:
    return (choice.delta.content if choice.delta else choice.text) or ""


def _text(choice: _Choice) -> str:
    """A choice's text with its reasoning, which counts for times but is not sent back in the next turn."""
    return ((choice.delta.reasoning_content if choice.delta else None) or "") + _said(choice)
