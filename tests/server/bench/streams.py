"""Streams for the benchmark's tests, as bytes and as calls whose times are given."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from server.bench.call import Call


def event(**chunk: object) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def chat_event(content: str) -> bytes:
    return event(choices=[{"index": 0, "delta": {"content": content}}])


def usage_event(prompt_tokens: int, completion_tokens: int, cached_tokens: int | None = None) -> bytes:
    usage: dict[str, object] = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    if cached_tokens is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached_tokens}
    return event(choices=[], usage=usage)


DONE = b"data: [DONE]\n\n"


def answered(times: Sequence[float], tokens: int, number: int = 0, turn: int = 1, content: str = "text") -> Call:
    """Sent at second 0, with text at these seconds."""
    return Call(number, turn, times=list(times), content=content, prompt_tokens=10, completion_tokens=tokens)
