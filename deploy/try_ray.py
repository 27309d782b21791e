"""Shows what clients see while Ray Serve scales, drains, is full and loses a replica: `python -m deploy.try_ray`.

Starts Ray Serve with the bundled model, one thread a replica, does each while streams run, and prints how they ended.
The configuration is that of `gander ray-config`, with the changes that each trial names.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from deploy.conversation import Ask, Streamed, new_asks, run
from deploy.local_ray import LOOK_SECONDS, SETTINGS, LocalRay, local_ray
from server.ray.config_file import GANDER, RayOptions, config_of

NUM_STREAMS = 24
STREAM_TOKENS = 300
MOST_SECONDS = 300.0


def config(least: int, most: int, settings: Mapping[str, Any] = SETTINGS) -> dict[str, Any]:
    return config_of(RayOptions(least, most, cpus=1, gpus=0), settings)


def replicas_of(written: Mapping[str, Any]) -> dict[str, Any]:
    """The replicas' options in a configuration, for changing them."""
    (application,) = written["applications"]
    (found,) = [each for each in application["deployments"] if each["name"] == GANDER]
    assert isinstance(found, dict)
    return found


@asynccontextmanager
async def streams_of(client: httpx.AsyncClient, asks: Sequence[Ask]) -> AsyncIterator[list[Streamed]]:
    """Run all streams at once. The block begins when each has begun; it is left when each has ended."""
    replies = [Streamed() for _ in asks]
    running = asyncio.gather(*(run(client, asked, reply) for asked, reply in zip(asks, replies, strict=True)))
    while not running.done() and not all(reply.text for reply in replies):
        await asyncio.sleep(0.05)
    try:
        yield replies
    finally:
        await running


async def scale(ray: LocalRay, client: httpx.AsyncClient) -> str:
    written = config(1, 2)
    replicas_of(written)["autoscaling_config"] |= {"upscale_delay_s": 2, "downscale_delay_s": 5}
    await asyncio.to_thread(ray.deploy, written)
    ends: Counter[str] = Counter()
    is_enough = asyncio.Event()

    async def load() -> None:
        while not is_enough.is_set():
            reply = Streamed()
            await run(client, new_asks(1, STREAM_TOKENS)[0], reply)
            ends[reply.end] += 1

    loading = asyncio.gather(*(load() for _ in range(NUM_STREAMS)))
    rise = await _seconds_until(lambda: len(ray.replica_pids()) == 2)
    is_enough.set()
    await loading
    fall = await _seconds_until(lambda: len(ray.replica_pids()) == 1)
    return (
        f"Scaling, delays of 2 and 5 s: two replicas {rise:.0f} s after {NUM_STREAMS} clients began, one "
        f"{fall:.0f} s after they ended; streams: {counted(ends)}."
    )


async def drain(ray: LocalRay, client: httpx.AsyncClient) -> str:
    """Remove one replica; then change the settings, so that Ray replaces front and replicas."""
    await asyncio.to_thread(ray.deploy, config(2, 2))
    lines = []
    for name, written in (
        ("two to one", config(1, 1)),
        ("new settings", config(1, 1, SETTINGS | {"max_waiting": 512})),
    ):
        async with streams_of(client, new_asks(NUM_STREAMS, STREAM_TOKENS)) as replies:
            started = time.perf_counter()
            await asyncio.to_thread(ray.deploy, written)
            seconds = time.perf_counter() - started
        lines.append(f"{name} in {seconds:.0f} s, streams: {ends_of(replies)}")
    return f"Deployed anew under {NUM_STREAMS} streams: {'; '.join(lines)}."


async def fill(ray: LocalRay, client: httpx.AsyncClient) -> str:
    written = config(1, 1)
    replicas_of(written).update(max_ongoing_requests=4, max_queued_requests=4)
    await asyncio.to_thread(ray.deploy, written)
    replies = await burst(client, NUM_STREAMS)
    statuses = Counter(f"status {reply.status_code}" for reply in replies)
    (refused, *_) = [reply for reply in replies if reply.status_code == 429]
    return (
        f"{NUM_STREAMS} requests at once where four may run and four wait: {counted(statuses)}, with Retry-After: "
        f"{refused.headers['retry-after']} and {refused.text}"
    )


async def burst(client: httpx.AsyncClient, count: int) -> list[httpx.Response]:
    """Send more requests than fit, for replies so long that none ends before the last request has come."""
    body = {"prompt": "def mean(values):\n", "max_tokens": STREAM_TOKENS, "ignore_eos": True}
    return await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(count)))


async def lose(ray: LocalRay, client: httpx.AsyncClient) -> str:
    await asyncio.to_thread(ray.deploy, config(2, 2))
    async with streams_of(client, new_asks(NUM_STREAMS, STREAM_TOKENS)) as replies:
        kill_one(ray)
    return f"A replica of two killed under {NUM_STREAMS} streams: {ends_of(replies)}."


def kill_one(ray: LocalRay) -> None:
    os.kill(ray.replica_pids()[0], signal.SIGKILL)


def ends_of(replies: Sequence[Streamed]) -> str:
    return counted(Counter(reply.end for reply in replies))


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items())


async def _seconds_until(is_so: Callable[[], bool]) -> float:
    started = time.perf_counter()
    async with asyncio.timeout(MOST_SECONDS):
        while not await asyncio.to_thread(is_so):
            await asyncio.sleep(LOOK_SECONDS)
    return time.perf_counter() - started


async def main() -> None:
    with local_ray() as ray:
        limits = httpx.Limits(max_connections=2 * NUM_STREAMS)
        async with httpx.AsyncClient(base_url=ray.url, timeout=600, limits=limits) as client:
            for trial in (scale, drain, fill, lose):
                sys.stdout.write(await trial(ray, client) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
