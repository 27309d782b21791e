"""Measures how one key's flood slows another key: `python -m deploy.measure_fairness [FLAGS OF gander serve]`.

Key A always has four calls open, each for 64 sampled choices of 200 tokens. Key B asks for one token, 150 times: alone,
then beside the flood, in turns. It prints B's milliseconds; the exit status is 1 where B's p99 beside the flood is more
than three times its p99 alone.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import httpx

from server.bench.started_servers import running_gander

ROUNDS = 2
NUM_ASKED, PAUSE_SECONDS = 150, 0.02
NUM_CALLS, NUM_CHOICES, REPLY_TOKENS = 4, 64, 200
FLOOD_SECONDS = 3.0  # enough for all choices to have begun
MOST_RATIO = 3.0


class Clients:
    """Clients of both keys, for one server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self._num_asked = 0

    async def ask(self, count: int) -> list[float]:
        """Send so many one-token requests of key B, each with its own prompt. Returns their milliseconds."""
        times = []
        for _ in range(count):
            self._num_asked += 1
            body = {"prompt": f"Question {self._num_asked}: how are you today, my friend?", "max_tokens": 1}
            started = time.perf_counter()
            reply = await self._http.post("/v1/completions", json=body, headers={"X-Api-Key": "b"})
            times.append(1000 * (time.perf_counter() - started))
            reply.raise_for_status()
            await asyncio.sleep(PAUSE_SECONDS)
        return times

    @asynccontextmanager
    async def flood(self) -> AsyncIterator[None]:
        """Keep key A's calls running until the block ends."""
        calls = [asyncio.create_task(self._flood(number)) for number in range(NUM_CALLS)]
        try:
            await asyncio.sleep(FLOOD_SECONDS)
            yield
            assert not any(call.done() for call in calls), [call for call in calls if call.done()]
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    async def _flood(self, number: int) -> None:
        body = {"prompt": f"Once upon a time {number} there was", "max_tokens": REPLY_TOKENS, "n": NUM_CHOICES}
        asked = body | {"stream": True, "ignore_eos": True}
        while True:
            async with self._http.stream("POST", "/v1/completions", json=asked, headers={"X-Api-Key": "a"}) as reply:
                reply.raise_for_status()
                async for _ in reply.aiter_bytes():
                    pass


def quantile(times: Sequence[float], part: float) -> float:
    return sorted(times)[min(int(len(times) * part), len(times) - 1)]


def shown(times: Sequence[float]) -> str:
    return f"{quantile(times, 0.5):.0f} / {quantile(times, 0.99):.0f}"


async def measure(url: str) -> float:
    """Print a table, and return the largest ratio in it."""
    ratios = []
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)) as http:
        clients = Clients(http)
        await clients.ask(5)
        sys.stdout.write("| | quiet p50 / p99 | beside the flood p50 / p99 | p99 over quiet p99 |\n|---|---|---|---|\n")
        for number in range(1, ROUNDS + 1):
            quiet = await clients.ask(NUM_ASKED)
            async with clients.flood():
                flooded = await clients.ask(NUM_ASKED)
            ratios.append(quantile(flooded, 0.99) / quantile(quiet, 0.99))
            sys.stdout.write(f"| round {number} | {shown(quiet)} | {shown(flooded)} | {ratios[-1]:.2f} |\n")
    return max(ratios)


def main(flags: Sequence[str]) -> int:
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        keys.write("a\nb\n")
        keys.flush()
        with running_gander([*flags, "--api-key-file", keys.name]) as url:
            return int(asyncio.run(measure(url)) > MOST_RATIO)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
