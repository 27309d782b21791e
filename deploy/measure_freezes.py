"""Measures how long one key can hold up another's stream: `python -m deploy.measure_freezes [FLAGS OF gander serve]`.

Key B streams long replies, one after another, from a process of its own. Meanwhile key A sends what costs most: calls
of many choices, long lists, prompts and bodies, and readers that never read. It prints, for each attack, the longest
time that B waited between two chunks of a reply, alone and beside it, and the resident memory of the worker; the exit
status is 1 where B waited for longer than 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

import httpx

from deploy.soaking.chaos import resident_mib
from server.bench.started_servers import running_gander

MOST_MS = 50.0
QUIET_SECONDS, REST_SECONDS = 2.0, 1.0
IDLE_SECONDS = 30.0  # after which the worker has given its memory back


@dataclass(frozen=True, slots=True)
class Attack:
    """calls: how many at once. hangs_up: seconds after which they are left. is_read: whether the replies are."""

    name: str
    body: dict[str, object]
    calls: int = 1
    hangs_up: float | None = None
    is_read: bool = True


def _emoji(count: int) -> str:
    return "".join(chr(random.randint(0x1F300, 0x1F6FF)) for _ in range(count))


def attacks() -> list[Attack]:
    random.seed(0)
    one = {"prompt": "Hello", "max_tokens": 1}
    same_ids = one | {"n": 16, "allowed_token_ids": [5] * 800_000}
    emoji = one | {"n": 128, "bad_words": [_emoji(256) for _ in range(128)]}
    lists = one | {
        "n": 128,
        "logit_bias": {str(token): 1.0 for token in range(1000)},
        "bad_words": [f"word{number}" for number in range(128)],
        "stop": [f"stop{number}" for number in range(16)],
    }
    unread = {"prompt": "Hello", "max_tokens": 400, "n": 8, "logprobs": 20, "ignore_eos": True, "stream": True}
    return [
        Attack("n 16, 800,000 equal allowed ids", same_ids),
        Attack("the same, left after 0.8 s", same_ids, hangs_up=0.8),
        Attack("n 128, 128 bad words of 256 emoji", emoji),
        Attack("7 such calls", emoji, 7),
        Attack("7 calls of n 128, bias of 1,000, 128 bad words, 16 stops", lists, 7),
        Attack("7 calls of n 128, a prompt of 500 words", one | {"n": 128, "prompt": "word " * 500}, 7),
        Attack("7 calls of n 128, penalties", one | {"n": 128, "presence_penalty": 1.0, "min_tokens": 1}, 7),
        Attack("4 calls of n 128", one | {"n": 128}, 4),
        Attack("8 predictions of 3 MB", one | {"prediction": {"type": "content", "content": "word " * 600_000}}, 8),
        Attack("60 readers that never read, n 8, 20 logprobs", unread, 60, 4.0, is_read=False),
    ]


def stream_for_ever(url: str, told: Connection) -> None:
    """Key B, in a process of its own: send the longest wait between two chunks of a reply, in ms, whenever something is
    received."""
    longest = 0.0
    body = {"prompt": "Once upon a time", "max_tokens": 2000, "stream": True, "ignore_eos": True, "temperature": 1.0}
    with httpx.Client(base_url=url, timeout=600, headers={"X-Api-Key": "b"}) as http:
        while True:
            with http.stream("POST", "/v1/completions", json=body) as reply:
                reply.raise_for_status()
                last = None
                for _ in reply.iter_raw():
                    now = time.perf_counter()
                    longest = max(longest, 0.0 if last is None else 1000 * (now - last))
                    last = now
                    if told.poll():
                        told.recv()
                        told.send(longest)
                        longest = 0.0


class Victim:
    def __init__(self, url: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._told, other = context.Pipe()
        self._process = context.Process(target=stream_for_ever, args=(url, other), daemon=True)
        self._process.start()

    def longest(self) -> float:
        """Milliseconds: the longest wait since this was last called."""
        self._told.send(None)
        return float(self._told.recv())

    def end(self) -> None:
        self._process.kill()
        self._process.join()


async def attack(http: httpx.AsyncClient, asked: Attack) -> str:
    """Send the attack's calls at once. Returns the statuses of its replies."""
    content = json.dumps(asked.body).encode()

    async def call() -> str:
        headers = {"X-Api-Key": "a", "Content-Type": "application/json"}
        async with http.stream("POST", "/v1/completions", content=content, headers=headers) as reply:
            if not asked.is_read:
                await asyncio.sleep(60.0)
            await reply.aread()
            return str(reply.status_code)

    async def limited() -> str:
        try:
            async with asyncio.timeout(asked.hangs_up):
                return await call()
        except TimeoutError:
            return "left"

    statuses = await asyncio.gather(*(limited() for _ in range(asked.calls)))
    return ", ".join(f"{statuses.count(each)} x {each}" for each in sorted(set(statuses)))


async def measure(url: str) -> float:
    """Print a table, and return the longest wait in it."""
    longest = 0.0
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        pid = (await http.get("/health", headers={"X-Api-Key": "watcher"})).json()["worker_pid"]
        victim = Victim(url)
        await asyncio.sleep(QUIET_SECONDS)
        sys.stdout.write("| key A | B alone, ms | beside it, ms | replies | worker, MiB |\n|---|---|---|---|---|\n")
        for asked in attacks():
            await asyncio.to_thread(victim.longest)
            await asyncio.sleep(QUIET_SECONDS)
            alone = await asyncio.to_thread(victim.longest)
            replies = await attack(http, asked)
            await asyncio.sleep(REST_SECONDS)
            beside = await asyncio.to_thread(victim.longest)
            memory = resident_mib(pid) or 0.0
            sys.stdout.write(f"| {asked.name} | {alone:.0f} | {beside:.0f} | {replies} | {memory:,.0f} |\n")
            sys.stdout.flush()
            longest = max(longest, beside)
        victim.end()
        await asyncio.sleep(IDLE_SECONDS)
        sys.stdout.write(f"\nAfter {IDLE_SECONDS:g} s of rest the worker holds {resident_mib(pid) or 0.0:,.0f} MiB.\n")
    return longest


def main(flags: Sequence[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("a\nb\nadmin watcher\n")
        keys.flush()
        with running_gander([*flags, "--api-key-file", keys.name]) as url:
            return int(asyncio.run(measure(url)) > MOST_MS)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
