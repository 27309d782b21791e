"""A client that streams completions of many sessions through a router. Knows nothing of Ray."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from server.http.sender import SESSION_HEADER

NAMES = ("mean", "median", "total", "smallest", "largest", "middle", "variance", "product", "clip", "reverse")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. length: the reply's, in tokens; is_named: a header tells the router the session."""

    session: str
    prompt: str
    seed: int
    length: int
    is_named: bool = True

    @property
    def body(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "max_tokens": self.length,
            "ignore_eos": True,
            "temperature": 0.8,
            "seed": self.seed,
            "session_id": self.session,
            "cache_salt": self.session,
            "stream": True,
            "stream_options": {"include_usage": True},
            "speculation": {"method": "stand", "max_nodes": 24, "report": True},
        }


@dataclass(slots=True)
class Streamed:
    """What a client has received of a reply. end: "end", an error's code, or how the connection was lost."""

    text: str = ""
    end: str = "cut short"
    cached: int = 0
    prompt: int = 0
    tokens: int = 0
    accepted: int = 0

    def take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.end = f"error event {event['error']['code']}"
            return
        if usage := event.get("usage"):
            self.prompt, self.tokens = usage["prompt_tokens"], usage["completion_tokens"]
            self.cached = usage["prompt_tokens_details"]["cached_tokens"]
        for choice in event["choices"]:
            self.text += choice["text"]
            if report := choice.get("speculation"):
                self.accepted = report["accepted"]


def prompt_of(number: int) -> str:
    """A prompt that is longer than one block of the cache."""
    name = NAMES[number % len(NAMES)]
    return f'def {name}_{number}(values):\n    """Return the {name} of a list of numbers, which may be empty."""\n    '


def new_asks(count: int, length: int) -> list[Ask]:
    """One request for each of so many new sessions."""
    return [Ask(uuid.uuid4().hex, prompt_of(number), number, length) for number in range(count)]


async def run(client: httpx.AsyncClient, asked: Ask, reply: Streamed) -> None:
    """Read a reply as it comes, to its end."""
    headers = {SESSION_HEADER: asked.session} if asked.is_named else {}
    try:
        async with client.stream("POST", "/v1/completions", json=asked.body, headers=headers) as response:
            if response.status_code != 200:
                reply.end = f"status {response.status_code}"
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    reply.end = "end" if reply.end == "cut short" else reply.end
                elif line.startswith("data: "):
                    reply.take(json.loads(line.removeprefix("data: ")))
    except httpx.HTTPError as error:
        reply.end = f"cut short ({type(error).__name__})"


async def converse(
    client: httpx.AsyncClient, number: int, session: str, lengths: Sequence[int], is_named: bool = True
) -> list[Streamed]:
    """Hold a conversation whose replies have these lengths; each request has all that came before."""
    prompt, replies = prompt_of(number), []
    for turn, length in enumerate(lengths):
        reply = Streamed()
        await run(client, Ask(session, prompt, 100 * number + turn, length, is_named), reply)
        replies.append(reply)
        prompt += reply.text + "\n\ndef again(values):\n    "
    return replies
