"""What it is worth that a session goes back to its server: conversations through a router, with and without its header.

    python -m deploy.measure_affinity http://127.0.0.1:8000 --rounds 3
    python -m deploy.measure_affinity http://127.0.0.1:8000 --kill PID

The first shows, for each round of either kind, tokens a second, the share of prompt tokens that was cached and accepted
tokens a step; the first turn of a conversation, which can gain nothing, does not count. The second kills a process amid
streams of as many sessions and shows how they ended.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx

NAMES = ("mean", "median", "total", "smallest", "largest", "middle", "variance", "product", "clip", "reverse")
KILL_AFTER = 6.0  # seconds of streams


@dataclass(slots=True)
class Streamed:
    """Of one reply. end: "end", an error's code, or how the connection was lost."""

    text: str = ""
    end: str = "cut short"
    cached: int = 0
    prompt: int = 0
    tokens: int = 0
    accepted: int = 0
    steps: int = 0

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
                self.accepted, self.steps = report["accepted"], report["steps"]


async def ask(client: httpx.AsyncClient, session: str, prompt: str, seed: int, is_named: bool, length: int) -> Streamed:
    """One streamed reply. is_named: the router is told the session, by its header."""
    body = {
        "prompt": prompt,
        "max_tokens": length,
        "ignore_eos": True,
        "temperature": 0.8,
        "seed": seed,
        "session_id": session,
        "cache_salt": session,
        "stream": True,
        "stream_options": {"include_usage": True},
        "speculation": {"method": "stand", "max_nodes": 24, "report": True},
    }
    reply, headers = Streamed(), {"x-session-id": session} if is_named else {}
    try:
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as response:
            if response.status_code != 200:
                reply.end = f"status {response.status_code}"
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    reply.end = "end" if reply.end == "cut short" else reply.end
                elif line.startswith("data: "):
                    reply.take(json.loads(line.removeprefix("data: ")))
    except httpx.HTTPError as error:
        reply.end = f"cut short ({type(error).__name__})"
    return reply


async def converse(client: httpx.AsyncClient, number: int, turns: int, is_named: bool) -> list[Streamed]:
    session, prompt, replies = uuid.uuid4().hex, f"def {NAMES[number % len(NAMES)]}_{number}(values):\n    ", []
    for turn in range(turns):
        replies.append(await ask(client, session, prompt, 100 * number + turn, is_named, 96))
        prompt += replies[-1].text + "\n\ndef again(values):\n    "
    return replies


async def measure_round(client: httpx.AsyncClient, sessions: int, turns: int, is_named: bool) -> str:
    started = time.perf_counter()
    conversations = await asyncio.gather(*(converse(client, number, turns, is_named) for number in range(sessions)))
    seconds = time.perf_counter() - started
    replies = [reply for conversation in conversations for reply in conversation]
    later = [reply for conversation in conversations for reply in conversation[1:]]
    cached = sum(reply.cached for reply in later) / max(1, sum(reply.prompt for reply in later))
    accepted = sum(reply.accepted for reply in later) / max(1, sum(reply.steps for reply in later))
    ends = dict(Counter(reply.end for reply in replies))
    rate = sum(reply.tokens for reply in replies) / seconds
    return f"| {'with' if is_named else 'without'} | {rate:.0f} | {cached:.0%} | {accepted:.2f} | {ends} |"


async def kill_amid(client: httpx.AsyncClient, sessions: int, pid: int) -> str:
    prompts = [f"def {NAMES[number % len(NAMES)]}_{number}(values):\n" for number in range(sessions)]
    asked = [ask(client, uuid.uuid4().hex, prompt, 7, True, 600) for prompt in prompts]
    streams = asyncio.gather(*asked)
    await asyncio.sleep(KILL_AFTER)
    os.kill(pid, signal.SIGKILL)
    ends = Counter(reply.end for reply in await streams)
    return ", ".join(f"{count} {end}" for end, count in ends.items())


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--sessions", type=int, default=12, help="at the same time")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kill", type=int, metavar="PID")
    chosen = parser.parse_args()
    limits = httpx.Limits(max_connections=chosen.sessions)
    async with httpx.AsyncClient(base_url=chosen.url, timeout=600, limits=limits) as client:
        if chosen.kill is not None:
            tell(await kill_amid(client, chosen.sessions, chosen.kill))
            return
        tell("| x-session-id | tokens/s | cached prompt tokens | accepted a step | ends |\n|---|---|---|---|---|")
        for _ in range(chosen.rounds):
            for is_named in (True, False):
                tell(await measure_round(client, chosen.sessions, chosen.turns, is_named))


if __name__ == "__main__":
    asyncio.run(main())
